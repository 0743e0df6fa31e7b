package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The driver on a module of its own: what is printed last, and the exit code, are what CI and people go by.
func TestTheLastLineSaysHowTheTestsWent(t *testing.T) {
	t.Parallel()

	const head = "package shop\n\nimport \"testing\"\n\n"
	cases := map[string]struct {
		test     string
		wantCode int
		wantLast string
	}{
		"tests that pass are counted": {
			test:     head + "func TestA(t *testing.T) { t.Run(\"b\", func(*testing.T) {}) }\n",
			wantLast: "OK: 2 passed",
		},
		"a test that fails is named": {
			test:     head + "func TestA(t *testing.T) { t.Error(\"no\") }\n",
			wantCode: exitFailed,
			wantLast: "NOT OK: tests with race detector: 1 failed (example.org/shop.TestA)",
		},
		"a data race is a failure": {
			test: head + "func TestA(*testing.T) { n, done := 0, make(chan int); go func() { n++; close(done) }(); n++; <-done }\n",

			wantCode: exitFailed,
			wantLast: "NOT OK: tests with race detector: 1 failed (example.org/shop.TestA)",
		},
		"a module without tests is not OK": {
			test:     "package shop\n",
			wantCode: exitFailed,
			wantLast: "NOT OK: test packages: no test ran",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			file := "shop_test.go"
			if !strings.Contains(tc.test, "testing") {
				file = "shop.go"
			}
			for name, text := range map[string]string{"go.mod": "module example.org/shop\n\ngo 1.26\n", file: tc.test} {
				if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			var out bytes.Buffer
			r := &runner{root: root, cache: filepath.Join(root, "cache"), out: &out}

			r.testSteps(t.Context())
			code := r.finish(t.Context(), true)

			lines := strings.Split(strings.TrimSpace(out.String()), "\n")
			if last := lines[len(lines)-1]; code != tc.wantCode || last != tc.wantLast {
				t.Errorf(
					"exit code %d and last line %q, want %d and %q\n%s",
					code,
					last,
					tc.wantCode,
					tc.wantLast,
					&out,
				)
			}
		})
	}
}

func TestTestsWhoseNeedsAreMissingAreLeftOutAndCounted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	tests := "package x\nfunc TestAsRootA(t *testing.T) {}\nfunc TestAsRootB(t *testing.T) {}\nfunc TestWithNode(t *testing.T) {}\n"
	if err := os.WriteFile(filepath.Join(dir, "x_test.go"), []byte(tests), 0o600); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	r := &runner{out: &out, results: testCounts{passed: 40}}
	there := func(is bool) func() bool { return func() bool { return is } }
	args := r.leaveOut([]need{
		{"TestAsRoot", "root", there(false)},
		{"TestWithNode", "node", there(true)},
		{"TestWithJava", "java", there(false)}, // nothing needs it
	}, []testPackage{{"x", dir}})
	if want := []string{"-skip", "^(TestAsRoot)"}; !slices.Equal(args, want) {
		t.Errorf("leaveOut() = %q, want %q", args, want)
	}
	if code := r.finish(t.Context(), true); code != 0 || out.String() != "NOT RUN: 2 tests need root\nOK: 40 passed\n" {
		t.Errorf("exit code %d, printed:\n%s", code, &out)
	}
}

func TestStepsSideBySideAreCountedAndKeepTheirLinesTogether(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := &runner{out: &out, results: testCounts{passed: 40}}
	other := make(chan struct{})
	r.beside(t.Context(), func(ctx context.Context, r *runner) {
		r.step(ctx, "first", func(context.Context) error {
			<-other // both run at a time
			r.results.passed++
			return nil
		})
	}, func(ctx context.Context, r *runner) {
		r.step(ctx, "second", func(context.Context) error {
			close(other)
			r.notRun = append(r.notRun, "1 test needs root")
			return errors.New("no")
		})
	})
	code := r.finish(t.Context(), true)
	got := regexp.MustCompile(`\(\d+.*s\)`).ReplaceAllString(out.String(), "(time)")
	const first, second = "=== first\n--- first: ok (time)\n", "=== second\n--- second: not ok (time): no\n"
	const last = "NOT RUN: 1 test needs root\nNOT OK: second: no\n"
	if code != exitFailed || got != first+second+last && got != second+first+last || r.results.passed != 41 {
		t.Errorf("exit code %d, %d passed, printed:\n%s", code, r.results.passed, got)
	}
}
