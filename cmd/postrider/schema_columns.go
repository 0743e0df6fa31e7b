package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres/mapped"
	"github.com/postrider/postrider/internal/postgres/schema"
)

// columnFlags name the columns of a table that the team already has, as outbox.preset and outbox.columns do.
type columnFlags struct {
	preset          string
	columns, values map[string]string
	ordering        string
}

func (f *columnFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.preset, "preset", "", "the outbox is a table that the team already has (layout StatusColumns), "+
		"with the columns of Postrider, DebeziumOutbox or OpenOutbox")
	flags.StringToStringVar(&f.columns, "column", nil, "with or without --preset: the name of a column of the team's "+
		"table, as outbox.columns names it, such as version=seq; empty where there is none")
	flags.StringToStringVar(
		&f.values,
		"status-value",
		nil,
		"a value of the status column of the team's table, such as pending=NEW; one takes "+
			"the place of all those of the preset",
	)
	flags.StringVar(
		&f.ordering,
		"ordering",
		config.OrderingPerKey,
		"ordering.mode of the relay of the team's table: PerKey or None",
	)
}

// mapping returns what the flags say; nil where the outbox is a table of our own.
func (f *columnFlags) mapping() (*config.Columns, error) {
	if f.preset == "" && len(f.columns) == 0 && len(f.values) == 0 {
		return nil, nil //nolint:nilnil // there is none, and that is no error
	}
	out, known := config.Preset(f.preset)
	if f.preset != "" && !known {
		return nil, errors.New("--preset is Postrider, DebeziumOutbox or OpenOutbox")
	}
	if err := overlay(f.columns, &out); err != nil {
		return nil, fmt.Errorf("--column: %w", err)
	}
	if len(f.values) > 0 {
		out.Values = config.StatusValues{}
		if err := overlay(f.values, &out.Values); err != nil {
			return nil, fmt.Errorf("--status-value: %w", err)
		}
	}
	if out.Status == "" {
		out.Values = config.StatusValues{}
	}
	return &out, out.Validate(f.ordering)
}

// overlay sets fields by their names in the configuration.
func overlay(fields map[string]string, into any) error {
	raw, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.DisallowUnknownFields()
	if len(fields) == 0 {
		return nil
	}
	if err := decoder.Decode(into); err != nil {
		return errors.New("names a field that there is not; see outbox.columns in docs/layouts.md")
	}
	return nil
}

// writeLimits says what a team's own table cannot do.
func writeLimits(out io.Writer, o schema.Options) {
	if o.Columns == nil {
		return
	}
	table := mapped.Table{Map: *o.Columns, Unordered: o.Unordered}
	for _, limit := range table.Limits() {
		fmt.Fprintf(out, "Note: %s\n", limit)
	}
}
