package verdict

import (
	"bytes"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/deadletter"
)

// DueKind is what happens to the time at which a key is looked at again.
type DueKind uint8

// The kinds.
const (
	// DueKeep leaves it.
	DueKeep DueKind = iota
	// DueNever clears it.
	DueNever
	// DueAfter sets it, counted from now by the database's clock.
	DueAfter
)

// Due is the new time at which a key is looked at again.
type Due struct {
	Kind  DueKind
	After time.Duration
}

// Change is what is to be written of a key.
type Change struct {
	Hash Hash
	Key
	Due Due
}

// Plain says whether only the version moved, which is all that happens to most keys.
func (c Change) Plain() bool { return c.State == Open && c.Due.Kind == DueKeep }

// track is a key while a batch is decided.
type track struct {
	Key
	start Key
	undo  Key
	// ripe says that a gap's missing version was taken, so that parked ones may follow it now.
	ripe  bool
	pause *time.Duration
}

// Batch decides a lane's messages inside one transaction. The caller tells which keys it has locked (Got) and which
// ids are new (Fresh, Known), asks for decisions in the order of arrival (Decide), reports statements that failed (Fail)
// and writes what Changes and Decisions say.
type Batch struct {
	rules     Rules
	items     []*Item
	first     []int // the place of the first item with the same id
	fresh     []bool
	decisions []Decision
	keys      map[Hash]*track
}

// NewBatch folds repeated ids: only the first of each is a candidate, the others follow its fate.
func NewBatch(rules Rules, items []*Item) *Batch {
	b := &Batch{
		rules: rules, items: items, first: make([]int, len(items)), fresh: make([]bool, len(items)),
		decisions: make([]Decision, len(items)), keys: make(map[Hash]*track),
	}
	seen := make(map[ID]int, len(items))
	for i, it := range items {
		first, repeated := seen[it.Inbox()]
		if !repeated {
			first = i
			seen[it.Inbox()] = i
		}
		b.first[i] = first
	}
	return b
}

// Items returns the batch's messages in the order of arrival.
func (b *Batch) Items() []*Item { return b.items }

// Hashes returns the keys that the batch needs, each once, sorted.
func (b *Batch) Hashes() []Hash {
	set := make(map[Hash]struct{}, len(b.items))
	hashes := make([]Hash, 0, len(b.items))
	for i, it := range b.items {
		if !it.Keyed || b.first[i] != i {
			continue
		}
		if _, there := set[it.Key]; !there {
			set[it.Key] = struct{}{}
			hashes = append(hashes, it.Key)
		}
	}
	slices.SortFunc(hashes, func(x, y Hash) int { return bytes.Compare(x[:], y[:]) })
	return hashes
}

// Got says that a key's row is locked and what it holds.
func (b *Batch) Got(h Hash, k Key) { b.keys[h] = &track{Key: k, start: k} }

// Candidates returns the places of the messages whose ids are to be put into the inbox.
func (b *Batch) Candidates() []int {
	var c []int
	for i, it := range b.items {
		if b.first[i] == i && (!it.Keyed || b.keys[it.Key] != nil) {
			c = append(c, i)
		}
	}
	return c
}

// Fresh says that the id of the message at i is new.
func (b *Batch) Fresh(i int) { b.fresh[i] = true }

// IsFresh says whether the id of the message at i is new.
func (b *Batch) IsFresh(i int) bool { return b.fresh[i] }

// Known says that the id of the message at i is in the inbox with this digest.
func (b *Batch) Known(i int, digest []byte) { b.decisions[i] = b.items[i].repeat(digest) }

// repeat decides a message whose id is known. Another digest is another message under a used id: silence would lose it.
func (it *Item) repeat(digest []byte) Decision {
	if bytes.Equal(digest, it.Digest[:]) {
		return Decision{Action: Repeat}
	}
	return Decision{Action: Bury, Reason: deadletter.DuplicateIDDifferentPayload}
}

// Decide decides the message at i if it is fresh, moves its key on and returns the decision.
func (b *Batch) Decide(i int) Decision {
	if !b.fresh[i] {
		return b.decisions[i]
	}
	it := b.items[i]
	var k Key
	t := b.keys[it.Key]
	if it.Keyed {
		k = t.Key
	}
	d := b.rules.Decide(k, it)
	if it.Keyed {
		t.undo = t.Key
		t.Key = b.rules.After(k, it, d)
		d.Ripe = k.State == Gap && t.Last != k.Last
		t.ripe = t.ripe || d.Ripe
	}
	b.decisions[i] = d
	return d
}

// Late says that the version of the message at i was skipped on purpose, which makes its conflict a late arrival.
func (b *Batch) Late(i int) { b.decisions[i].Reason = deadletter.LateVersion }

// Fail says that the statement of the message at i, the one decided last, failed: it is parked and its key waits.
func (b *Batch) Fail(i int, f Failure) {
	d := Decision{Action: Park, Failure: &f}
	b.decisions[i] = d
	if it := b.items[i]; it.Keyed {
		t := b.keys[it.Key]
		t.Key = b.rules.After(t.undo, it, d)
		t.pause = &f.Pause
	}
}

// Finish decides the repeated ids, which follow the first of theirs.
func (b *Batch) Finish() {
	for i, it := range b.items {
		if first := b.first[i]; first != i && b.decisions[first].Action != Undecided {
			b.decisions[i] = it.repeat(b.items[first].Digest[:])
		}
	}
}

// Decisions returns what becomes of each message, in the order of arrival.
func (b *Batch) Decisions() []Decision { return b.decisions }

// Changes returns the keys that moved, sorted.
func (b *Batch) Changes() []Change {
	var changes []Change
	for h, t := range b.keys {
		if t.Key != t.start || t.ripe || t.pause != nil {
			changes = append(changes, Change{Hash: h, Key: t.Key, Due: t.due(b.rules)})
		}
	}
	slices.SortFunc(changes, func(x, y Change) int { return bytes.Compare(x.Hash[:], y.Hash[:]) })
	return changes
}

func (t *track) due(r Rules) Due {
	switch {
	case t.State == Blocked:
		return Due{Kind: DueNever}
	case t.pause != nil:
		return Due{Kind: DueAfter, After: *t.pause}
	case t.State == Gap && t.ripe:
		return Due{Kind: DueAfter}
	case t.State == Gap && t.start.State != Gap:
		return r.gapDue(0)
	default:
		return Due{Kind: DueKeep}
	}
}

// gapDue is when a gap that has lasted for so long is looked at again.
func (r Rules) gapDue(lasted time.Duration) Due {
	if !r.ApplyAfterGap {
		return Due{Kind: DueNever}
	}
	return Due{Kind: DueAfter, After: max(0, r.GapTimeout-lasted)}
}
