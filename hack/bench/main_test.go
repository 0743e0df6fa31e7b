package main

import (
	"bytes"
	"errors"
	"testing"
)

// Scripts read the last line alone.
func TestTheLastLineSaysWhyNotOK(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err  error
		want string
	}{
		"a reason": {errors.New("below the bar"), "NOT OK: below the bar\n"},
		"a reason with a log": {
			errors.New("build the relay: exit status 1\nx.go:1: undefined: y"),
			"x.go:1: undefined: y\nNOT OK: build the relay: exit status 1\n",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			refuse(&out, tc.err)
			if out.String() != tc.want {
				t.Errorf("printed:\n%swant:\n%s", &out, tc.want)
			}
		})
	}
}
