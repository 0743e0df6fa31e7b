package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The refusals that a person on a bare machine meets: one line that says what to do, exit code 2.
func TestPreflight(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		// fakes are commands put before those of the machine: the shell text they run.
		fakes map[string]string
		hide  []string // commands that are not there
		env   func(dir string) []string
		args  []string
		want  string // the start of the one line; empty: accepted
	}{
		"a machine with everything is accepted": {args: []string{"test"}},
		"a missing C compiler is accepted where none is needed": {
			fakes: map[string]string{"gcc": "exit 1", "cc": "exit 1"},
		},
		"no Go": {
			hide: []string{"go"}, want: "NOT OK: Go is not installed: get version 1.26",
		},
		"no git": {
			hide: []string{"git"}, want: "NOT OK: git is not installed: apt-get install git",
		},
		"a Go that is too old": {
			fakes: map[string]string{"go": "echo go1.25.3"},
			want:  "NOT OK: Go 1.26 or newer is needed and this is go1.25.3",
		},
		"a Go that cannot fetch the newer one": {
			fakes: map[string]string{"go": "exit 1"},
			want:  "NOT OK: this Go cannot fetch Go 1.26",
		},
		"no C compiler for the race detector": {
			args:  []string{"test"},
			fakes: map[string]string{"gcc": "exit 1", "cc": "exit 1"},
			want:  "NOT OK: no C compiler that works",
		},
		"no Java for Kafka": {
			args: []string{"test"}, hide: []string{"java"}, want: "NOT OK: Java is not installed",
		},
		"no Maven for a Kafka that is not in the cache": {
			args: []string{"test"}, hide: []string{"mvn"}, want: "NOT OK: Maven is not installed",
			env: func(dir string) []string { return []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache")} },
		},
		"no Maven for a Kafka that is in the cache": {
			args: []string{"test"}, hide: []string{"mvn"},
			env: func(dir string) []string {
				_ = os.MkdirAll(filepath.Join(dir, "cache", "postrider", "kafka-9.9.9", "lib"), 0o700)
				return []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache")}
			},
		},
		"a cache that cannot be written": {
			env: func(dir string) []string {
				// A file in the place of the folder refuses root too.
				return []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "file")}
			},
			want: "NOT OK: the cache ",
		},
		"a Go build cache that cannot be written": {
			env:  func(dir string) []string { return []string{"GOCACHE=" + filepath.Join(dir, "file", "go-build")} },
			want: "NOT OK: the Go build cache ",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), "/bin/sh", append([]string{"../preflight.sh"}, tc.args...)...)
			cmd.Env = append(os.Environ(), "PATH="+commands(t, dir, tc.fakes, tc.hide))
			if tc.env != nil {
				cmd.Env = append(cmd.Env, tc.env(dir)...)
			}

			out, err := cmd.CombinedOutput()

			if tc.want == "" {
				if err != nil || len(out) > 0 {
					t.Fatalf("refused: %v\n%s", err, out)
				}
				return
			}
			if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != exitUsage {
				t.Errorf("ended with %v, want exit code %d", err, exitUsage)
			}
			if !strings.HasPrefix(string(out), tc.want) || strings.Count(string(out), "\n") != 1 {
				t.Errorf("printed:\n%swant one line that starts with:\n%s", out, tc.want)
			}
		})
	}
}

// commands returns a PATH whose only folder links what the script uses, with fakes in place of some and without
// the hidden ones.
func commands(tb testing.TB, dir string, fakes map[string]string, hide []string) string {
	tb.Helper()
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o700); err != nil {
		tb.Fatal(err)
	}
	for _, name := range []string{"go", "git", "java", "mvn", "gcc", "cc", "as", "ld", "sed", "dirname", "mkdir", "ls", "awk"} {
		if path, err := exec.LookPath(name); err == nil {
			if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
				tb.Fatal(err)
			}
		}
	}
	for name, text := range fakes {
		path := filepath.Join(bin, name)
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			tb.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700); err != nil {
			tb.Fatal(err)
		}
	}
	for _, name := range hide {
		if err := os.Remove(filepath.Join(bin, name)); err != nil {
			tb.Fatal(err)
		}
	}
	return bin
}
