package bench

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
)

// Finding is what one measure found out: quantities, and what of them is held to a bar.
type Finding struct {
	Machine Machine `json:"machine"`
	// Setup says in words what was measured.
	Setup      string     `json:"setup"`
	Quantities []Quantity `json:"quantities"`
	Bars       []Bar      `json:"bars"`
	// NotShown are the bars that this machine cannot show, each with the measured reason. Others stand in their place.
	NotShown []string `json:"notShown,omitempty"`
}

// Quantity is one thing that was measured, once a run.
type Quantity struct {
	Name string `json:"name"`
	What string `json:"what"`
	Unit string `json:"unit"`
	// Runs are in the order measured; Median is theirs.
	Runs   []float64 `json:"runs"`
	Median float64   `json:"median"`
}

// Bar is a value that must not miss its limit.
type Bar struct {
	// What the value is, in words.
	What  string  `json:"what"`
	Unit  string  `json:"unit"`
	Value float64 `json:"value"`
	Limit float64 `json:"limit"`
	// Least says that the limit is the least that will do; else it is the most.
	Least bool `json:"least"`
}

// ErrBelowBar says that something measured misses its bar.
var ErrBelowBar = errors.New("a bar is missed")

// Met says whether the value is on the right side of its limit.
func (b Bar) Met() bool {
	if b.Least {
		return b.Value >= b.Limit
	}
	return b.Value <= b.Limit
}

// String says what is held to which limit.
func (b Bar) String() string {
	side := "at most"
	if b.Least {
		side = "at least"
	}
	return fmt.Sprintf("%s: %s %s, the bar is %s %s", b.What, figure(b.Value), b.Unit, side, figure(b.Limit))
}

// Verdict returns nil when every bar is met, and else names those that are missed; errors.Is finds ErrBelowBar.
func (f Finding) Verdict() error {
	var missed []string
	for _, b := range f.Bars {
		if !b.Met() {
			missed = append(missed, b.String())
		}
	}
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrBelowBar, strings.Join(missed, "; "))
}

// Median returns the median of a quantity, 0 where there is none of that name.
func (f Finding) Median(name string) float64 {
	i := slices.IndexFunc(f.Quantities, func(q Quantity) bool { return q.Name == name })
	if i < 0 {
		return 0
	}
	return f.Quantities[i].Median
}

// add notes one run's value of a quantity, which is made where it is new.
func (f *Finding) add(name, unit, what string, value float64) {
	i := slices.IndexFunc(f.Quantities, func(q Quantity) bool { return q.Name == name })
	if i < 0 {
		i = len(f.Quantities)
		f.Quantities = append(f.Quantities, Quantity{Name: name, Unit: unit, What: what})
	}
	q := &f.Quantities[i]
	q.Runs = append(q.Runs, value)
	q.Median = median(q.Runs)
}

// most holds a value to an upper limit, least to a lower one.
func (f *Finding) most(what, unit string, value, limit float64) {
	f.Bars = append(f.Bars, Bar{What: what, Unit: unit, Value: value, Limit: limit})
}

func (f *Finding) least(what, unit string, value, limit float64) {
	f.Bars = append(f.Bars, Bar{What: what, Unit: unit, Value: value, Limit: limit, Least: true})
}

// Print writes the finding for people.
func (f Finding) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "\tmedian\tlowest\thighest\t\n")
	for _, q := range f.Quantities {
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t  %s: %s\n", q.Name, figure(q.Median), figure(slices.Min(q.Runs)),
			figure(slices.Max(q.Runs)), q.Unit, q.What)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	var bars strings.Builder
	for _, b := range f.Bars {
		verdict := "met"
		if !b.Met() {
			verdict = "MISSED"
		}
		fmt.Fprintf(&bars, "%s: %s\n", verdict, b)
	}
	for _, text := range f.NotShown {
		fmt.Fprintf(&bars, "not shown: %s\n", text)
	}
	if _, err := fmt.Fprintf(w, "%s%s\n%s\n", &bars, f.Setup, f.Machine); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// WriteJSON writes the finding for machines.
func (f Finding) WriteJSON(w io.Writer) error { return writeJSON(w, f) }

// figure writes a number with as many digits as mean anything.
func figure(v float64) string {
	if v == 0 || math.Abs(v) >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// quantile returns the value that a part q of all values does not exceed. There is at least one.
func quantile[V cmp.Ordered](values []V, q float64) V {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(q*float64(len(sorted))))-1)]
}

// turn is one contestant's run, among those it is compared with.
type turn struct {
	name string
	// run measures once and says in a few words what it found.
	run func() (told string, err error)
}

// inTurn lets contestants take turns, so that what the machine does meanwhile hits all of them. Progress gets a line a
// run; nil means none.
func inTurn(runs int, progress io.Writer, turns ...turn) error {
	for run := range runs {
		for _, t := range turns {
			told, err := t.run()
			if err != nil {
				return fmt.Errorf("%s, run %d: %w", t.name, run+1, err)
			}
			if progress != nil {
				fmt.Fprintf(progress, "run %d of %d: %-8s %s\n", run+1, runs, t.name, told)
			}
		}
	}
	return nil
}
