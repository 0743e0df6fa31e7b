package relay_test

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/message"
)

// modelAttempts is the retry budget of the model's messages.
const modelAttempts = 2

// jury is the broker's view of who failed and who got through: by it, no message may become a dead letter before it was
// refused, or failed after a failure while another key got through the same part of the broker, as often as its budget
// says (contract R5). What processes make of their own answers it does not know, so it counts at least as many.
type jury struct {
	mu       sync.Mutex
	failures map[message.ID][]failure
	success  map[string][]witness // by part
}

// failure is a broker's answer that may count against a message.
type failure struct {
	at        time.Time
	part, key string
	refused   bool // it says that the message itself is at fault
}

// witness is a message that got through.
type witness struct {
	at  time.Time
	key string
}

func newJury() *jury {
	return &jury{failures: make(map[message.ID][]failure), success: make(map[string][]witness)}
}

func (j *jury) failed(id message.ID, part, key string, refused bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.failures[id] = append(j.failures[id], failure{at: time.Now(), part: part, key: key, refused: refused})
}

func (j *jury) gotThrough(part, key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.success[part] = append(j.success[part], witness{at: time.Now(), key: key})
}

// counted returns how many failures of a message may count at most until then.
func (j *jury) counted(id message.ID, until time.Time) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	all := j.failures[id]
	for i, f := range all {
		if f.at.After(until) {
			break
		}
		end := until
		if i+1 < len(all) && all[i+1].at.Before(end) {
			end = all[i+1].at
		}
		if f.refused || (i > 0 && j.witnessed(all[i-1], end)) {
			n++
		}
	}
	return n
}

// witnessed says whether another key got through the part between a failure and a time.
func (j *jury) witnessed(since failure, until time.Time) bool {
	for _, w := range j.success[since.part] {
		if w.key != since.key && w.at.After(since.at) && !w.at.After(until) {
			return true
		}
	}
	return false
}

// sentence is a message that was given up.
type sentence struct {
	id message.ID
	at time.Time
}

// unjust names the messages that were given up too early.
func (j *jury) unjust(given []sentence) []string {
	var wrong []string
	for _, s := range given {
		if n := j.counted(s.id, s.at); n < modelAttempts {
			wrong = append(wrong, fmt.Sprintf("%s is a dead letter after %d failures that count", s.id, n))
		}
	}
	return wrong
}

// partOf returns the part of the broker that a key goes to.
func partOf(key string) string {
	if strings.ContainsAny(key[len(key)-1:], "02468") {
		return "even"
	}
	return "odd"
}
