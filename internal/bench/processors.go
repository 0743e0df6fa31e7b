package bench

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// drained is how a contestant did.
type drained struct {
	took time.Duration
	used share
}

// share is what a stretch of time took of the machine's processors, in parts of all of them: everybody together, and the
// measuring process alone. Both are 0 where the system does not tell.
type share struct{ busy, own float64 }

// clock is what the processors have done since the machine started, in ticks.
type clock struct{ all, idle, own float64 }

// readClock asks the system, which tells in two files on Linux; elsewhere the zero clock is all there is.
func readClock() clock {
	machine, err := os.ReadFile("/proc/stat")
	if err != nil {
		return clock{}
	}
	self, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return clock{}
	}
	return parseClock(string(machine), string(self))
}

// parseClock reads proc_stat(5) and proc_pid_stat(5).
func parseClock(machine, self string) clock {
	const (
		idle, ioWait = 3, 4 // of the first line, behind its name
		guest        = 8    // from here on, what user and nice hold already
		user, system = 11, 12
	)
	var c clock
	line, _, _ := strings.Cut(machine, "\n")
	for i, field := range strings.Fields(strings.TrimPrefix(line, "cpu ")) {
		if i >= guest {
			break
		}
		ticks, _ := strconv.ParseFloat(field, 64) // what is no number counts for nothing
		c.all += ticks
		if i == idle || i == ioWait {
			c.idle += ticks
		}
	}
	fields := strings.Fields(self[strings.LastIndexByte(self, ')')+1:]) // the name before it may hold spaces
	if len(fields) > system {
		for _, i := range [...]int{user, system} {
			ticks, _ := strconv.ParseFloat(fields[i], 64)
			c.own += ticks
		}
	}
	return c
}

// since returns what was used from an earlier reading to this one.
func (c clock) since(before clock) share {
	all := c.all - before.all
	if all <= 0 {
		return share{}
	}
	return share{busy: 1 - (c.idle-before.idle)/all, own: (c.own - before.own) / all}
}
