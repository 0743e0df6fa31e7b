package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"text/tabwriter"
)

// Result is what one contestant reached.
type Result struct {
	Name string `json:"name"`
	What string `json:"what"`
	// Runs are rows per second, in the order measured; Median is theirs.
	Runs   []float64 `json:"runs"`
	Median float64   `json:"median"`
	// OfLimit is Median in parts of the limit: of the bare loop's, or of the producer's where that is slower.
	OfLimit float64 `json:"ofLimit"`
	// Busy is how much of the machine's processors a run used, by everybody, the servers among them, and Own how much of
	// that is the measuring process, in parts of all of them; 0 where the system does not tell.
	Busy []float64 `json:"busy"`
	Own  []float64 `json:"own"`
}

// add notes a run.
func (r *Result) add(rate float64, used share) {
	r.Runs = append(r.Runs, rate)
	r.Busy, r.Own = append(r.Busy, used.busy), append(r.Own, used.own)
}

// Report is a comparison.
type Report struct {
	Machine      Machine  `json:"machine"`
	Rows         int      `json:"rows"`
	Keys         int      `json:"keys"`
	PayloadBytes int      `json:"payloadBytes"`
	Batch        int      `json:"batch"`
	Results      []Result `json:"results"`
}

// complete computes medians and ratios.
func (r *Report) complete() {
	limit := math.Inf(1)
	for i := range r.Results {
		result := &r.Results[i]
		result.Median = median(result.Runs)
		if result.Name == Bare || result.Name == Producer {
			limit = min(limit, result.Median)
		}
	}
	for i := range r.Results {
		r.Results[i].OfLimit = r.Results[i].Median / limit
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// Result returns what a contestant reached.
func (r Report) Result(name string) (Result, bool) {
	i := slices.IndexFunc(r.Results, func(r Result) bool { return r.Name == name })
	if i < 0 {
		return Result{}, false
	}
	return r.Results[i], true
}

// Print writes the comparison for people.
func (r Report) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(tw, "\trows/s\tof limit\tlowest\thighest\tbusy\town\t\n")
	for _, result := range r.Results {
		fmt.Fprintf(tw, "%s\t%.0f\t%.0f %%\t%.0f\t%.0f\t%.0f %%\t%.0f %%\t  %s\n", result.Name, result.Median,
			100*result.OfLimit, slices.Min(result.Runs), slices.Max(result.Runs), 100*median(result.Busy),
			100*median(result.Own), result.What)
	}
	if err := tw.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	_, err := fmt.Fprintf(
		w,
		"%d rows of %d bytes and %d keys, batches of %d, medians of %d; busy: the processors' time in use, own: by this process\n%s\n",
		r.Rows,
		r.PayloadBytes,
		r.Keys,
		r.Batch,
		len(r.Results[0].Runs),
		r.Machine,
	)
	if err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// WriteJSON writes the comparison for machines.
func (r Report) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
