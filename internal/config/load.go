package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// MaxFileBytes bounds a config file: a ConfigMap holds no more.
const MaxFileBytes = 1 << 20

// Problem is one thing wrong in a config: the field and what to do about it.
type Problem struct {
	// Field is the path of JSON names, such as "source.hosts[0]"; empty where the file as a whole is wrong.
	Field string
	Text  string
}

// InvalidError says everything that is wrong with one config file, in one line.
type InvalidError struct {
	File     string
	Problems []Problem
}

// Error names the file, then each field with its problem.
func (e *InvalidError) Error() string {
	var b strings.Builder
	b.WriteString(e.File)
	for i, p := range e.Problems {
		if i > 0 {
			b.WriteString(";")
		} else if e.File != "" {
			b.WriteString(":")
		}
		if b.Len() > 0 {
			b.WriteString(" ")
		}
		if p.Field != "" {
			b.WriteString(p.Field + ": ")
		}
		b.WriteString(p.Text)
	}
	return b.String()
}

// LoadRelay reads, decodes and validates a relay's config file.
func LoadRelay(path string) (Relay, error) { return load(path, ParseRelay) }

// LoadConsumer reads, decodes and validates a consumer's config file.
func LoadConsumer(path string) (Consumer, error) { return load(path, ParseConsumer) }

// ParseRelay decodes and validates a relay's config. An unknown, repeated or wrongly spelled field is refused.
func ParseRelay(b []byte) (Relay, error) { return parse(b, Relay.Validate) }

// ParseConsumer decodes and validates a consumer's config. An unknown, repeated or wrongly spelled field is refused.
func ParseConsumer(b []byte) (Consumer, error) { return parse(b, Consumer.Validate) }

func load[C any](path string, parse func([]byte) (C, error)) (C, error) {
	var none C
	b, err := readFile(path)
	if err != nil {
		return none, err
	}
	c, err := parse(b)
	if invalid, ok := errors.AsType[*InvalidError](err); ok {
		invalid.File = path
	}
	if err != nil {
		return none, err
	}
	return c, nil
}

// readFile reads at most MaxFileBytes, so that a wrong path to something huge costs nothing.
func readFile(path string) ([]byte, error) {
	f, err := os.Open(path) //nolint:gosec // the path is the operator's flag
	if err != nil {
		return nil, fileError(path, err)
	}
	defer func() { _ = f.Close() }() // read only: nothing is lost
	b, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	if err != nil {
		return nil, fileError(path, err)
	}
	return b, nil
}

// fileError drops the path that os puts into its errors: InvalidError names it already.
func fileError(path string, err error) error {
	if pathErr, ok := errors.AsType[*os.PathError](err); ok {
		err = pathErr.Err
	}
	return &InvalidError{File: path, Problems: []Problem{{Text: "cannot read it: " + err.Error()}}}
}

func parse[C any](b []byte, validate func(C) error) (C, error) {
	var c, none C
	if len(b) > MaxFileBytes {
		text := fmt.Sprintf("it is larger than %d bytes", MaxFileBytes)
		return none, &InvalidError{Problems: []Problem{{Text: text}}}
	}
	if err := decode(b, &c); err != nil {
		return none, err
	}
	if err := validate(c); err != nil {
		return none, err
	}
	return c, nil
}
