package verify

import (
	"fmt"
	"io"
	"text/tabwriter"
)

// Result is how a check ended.
type Result uint8

// The results.
const (
	// NotChecked: something it needs was not given or does not allow it; Note says what.
	NotChecked Result = iota
	// Kept: nothing that was looked at breaks the promise.
	Kept
	// Broken: something does.
	Broken
)

// String is the word in the printed report.
func (r Result) String() string {
	switch r {
	case Kept:
		return "ok"
	case Broken:
		return "BROKEN"
	default:
		return "-"
	}
}

// Check is one promise and what was found.
type Check struct {
	// Promise is the contract's number, such as G4.
	Promise string
	Title   string
	Result  Result
	// Looked counts what was looked at, Broken what of it breaks the promise.
	Looked int64
	Broken int64
	// First names the first offender: ids, versions and positions, never content.
	First string
	// Note says why a check was not made.
	Note string
}

// leave replaces what was found by why it says nothing.
func (c *Check) leave(note string) { c.Result, c.Note, c.First = NotChecked, note, "" }

// Fact is a number that belongs to the picture and breaks nothing.
type Fact struct {
	Name  string
	Count int64
}

// Section is what was found for one relay or consumer.
type Section struct {
	Name   string
	Facts  []Fact
	Checks []Check
}

// Report is what a run found.
type Report struct {
	Sections []Section
}

// OK says whether no promise is broken and at least one was checked.
func (r Report) OK() bool {
	kept, broken := r.counts()
	return broken == 0 && kept > 0
}

// Fact returns the sum of a fact over all sections.
func (r Report) Fact(name string) int64 {
	var sum int64
	for _, s := range r.Sections {
		for _, f := range s.Facts {
			if f.Name == name {
				sum += f.Count
			}
		}
	}
	return sum
}

func (r Report) counts() (kept, broken int) {
	for _, s := range r.Sections {
		for _, c := range s.Checks {
			switch c.Result {
			case Kept:
				kept++
			case Broken:
				broken++
			case NotChecked:
			}
		}
	}
	return kept, broken
}

// Print writes the report for people. Its last line starts with OK or NOT OK.
func (r Report) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range r.Sections {
		fmt.Fprintf(tw, "%s\n", s.Name)
		for _, f := range s.Facts {
			fmt.Fprintf(tw, "  \t\t%d\t%s\n", f.Count, f.Name)
		}
		for _, c := range s.Checks {
			printCheck(tw, c)
		}
	}
	kept, broken := r.counts()
	switch {
	case broken > 0:
		fmt.Fprintf(tw, "NOT OK: %d of %d promises broken\n", broken, kept+broken)
	case kept == 0:
		fmt.Fprintln(tw, "NOT OK: nothing could be checked")
	default:
		fmt.Fprintf(tw, "OK: %d promises kept; %d messages published, %d applied\n",
			kept, r.Fact(FactPublished), r.Fact(FactApplied))
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

func printCheck(w io.Writer, c Check) {
	switch c.Result {
	case NotChecked:
		fmt.Fprintf(w, "  %s\t%s\t\t%s: not checked, %s\n", c.Result, c.Promise, c.Title, c.Note)
	case Broken:
		fmt.Fprintf(w, "  %s\t%s\t%d of %d\t%s; first: %s\n", c.Result, c.Promise, c.Broken, c.Looked, c.Title, c.First)
	case Kept:
		fmt.Fprintf(w, "  %s\t%s\t%d\t%s\n", c.Result, c.Promise, c.Looked, c.Title)
	}
}
