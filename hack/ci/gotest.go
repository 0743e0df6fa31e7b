package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// testSteps runs every test that needs no cluster: under the race detector where the package does without Kubernetes, whose
// sources would have to be built a second time for it, and plain where not.
func (r *runner) testSteps(ctx context.Context) {
	var race, plain []testPackage
	r.step(ctx, "test packages", func(ctx context.Context) error {
		var err error
		race, plain, err = r.testPackages(ctx)
		return err
	})
	skip := r.leaveOut(needs(), slices.Concat(race, plain))
	if len(race) > 0 {
		r.step(ctx, "tests with race detector", func(ctx context.Context) error {
			return r.goTest(ctx, []string{"CGO_ENABLED=1"}, append(skip, "-race", "-trimpath"), race)
		})
	}
	if len(plain) > 0 {
		r.step(ctx, "tests with Kubernetes packages", func(ctx context.Context) error {
			return r.goTest(ctx, []string{"CGO_ENABLED=0"}, append(skip, "-trimpath"), plain)
		})
	}
}

func (r *runner) quickstartSteps(ctx context.Context) {
	r.step(ctx, "quickstart", func(ctx context.Context) error { return r.sh(ctx, "make", "quickstart") })
}

// testPackage is a package that has tests.
type testPackage struct {
	path string
	dir  string
}

// testPackages lists the packages that have tests: first those that do without Kubernetes, then the others.
func (r *runner) testPackages(ctx context.Context) (race, plain []testPackage, err error) {
	const format = `{{if eq .Name "main"}}{{.ImportPath}}{{"\t"}}{{.Dir}}{{"\t"}}{{join .Deps " "}}{{end}}`
	listed, err := r.goOutput(ctx, "list", "-test", "-f", format, "./...")
	if err != nil {
		return nil, nil, err
	}
	race, plain = splitPackages(listed)
	if len(race)+len(plain) == 0 {
		return nil, nil, errNoTests
	}
	return race, plain, nil
}

// splitPackages reads lines of "package.test", its folder and its dependencies, and passes over ordinary commands.
func splitPackages(listed string) (race, plain []testPackage) {
	for line := range strings.Lines(listed) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "\t")
		dir, deps, _ := strings.Cut(rest, "\t")
		pkg, isTest := strings.CutSuffix(name, ".test")
		if !isTest {
			continue
		}
		if strings.Contains(" "+deps, " k8s.io/") || strings.Contains(" "+deps, " sigs.k8s.io/controller-runtime") {
			plain = append(plain, testPackage{pkg, dir})
		} else {
			race = append(race, testPackage{pkg, dir})
		}
	}
	return race, plain
}

// need is what some tests need beyond what this project brings. Their names begin with the prefix, so that they are
// left out and counted where it is missing, instead of skipping themselves unseen.
type need struct {
	prefix string
	what   string
	there  func() bool
}

func onPath(commands ...string) func() bool {
	return func() bool {
		for _, c := range commands {
			if _, err := exec.LookPath(c); err != nil {
				return false
			}
		}
		return true
	}
}

func needs() []need {
	return []need{
		{"TestAsRoot", "root", func() bool { return os.Geteuid() == 0 }},
		{"TestWithPython", "python3 with pip", onPath("python3")},
		{"TestWithNode", "node and npm", onPath("node", "npm")},
		{"TestWithJava", "java 17 or later and mvn", onPath("java", "mvn")},
	}
}

// leaveOut returns the arguments that leave out the tests whose needs are not there, and counts them.
func (r *runner) leaveOut(needs []need, packages []testPackage) []string {
	var prefixes []string
	for _, n := range needs {
		if n.there() {
			continue
		}
		if count := countTests(packages, n.prefix); count > 0 {
			prefixes = append(prefixes, n.prefix)
			r.notRun = append(r.notRun, fmt.Sprintf("%d tests need %s", count, n.what))
		}
	}
	if len(prefixes) == 0 {
		return nil
	}
	return []string{"-skip", "^(" + strings.Join(prefixes, "|") + ")"}
}

// countTests counts the tests whose names begin with the prefix.
func countTests(packages []testPackage, prefix string) int {
	test, count := regexp.MustCompile(`(?m)^func `+prefix+`\w*\(`), 0
	for _, pkg := range packages {
		files, _ := filepath.Glob(filepath.Join(pkg.dir, "*_test.go")) // the pattern is well formed
		for _, file := range files {
			if b, err := os.ReadFile(file); err == nil {
				count += len(test.FindAll(b, -1))
			}
		}
	}
	return count
}

// goTest runs the packages' tests with the real servers beside them and counts what passed.
func (r *runner) goTest(ctx context.Context, env, flags []string, packages []testPackage) error {
	args := []string{"go", "test", "-json", "-count=1", "-vet=off", "-timeout=15m", "-parallel=4"}
	args = append(args, flags...)
	for _, pkg := range packages {
		args = append(args, pkg.path)
	}
	if r.exists("hack/servers") {
		// Not `go run`, which does not pass signals on.
		servers := filepath.Join(r.root, "bin", "servers")
		if err := r.sh(ctx, "go", "build", "-o", servers, "./hack/servers"); err != nil {
			return err
		}
		args = append([]string{servers, "run", "--"}, args...)
	}
	out := &together{out: r.out} // the children's standard error comes in beside what we say of their tests
	cmd := r.command(ctx, env, args[0], args[1:]...)
	cmd.Stderr = out
	events, err := r.pipe(cmd)
	if err != nil {
		return err
	}
	counts, readErr := readTestEvents(events, out)
	waitErr := cmd.Wait()
	r.results.passed += counts.passed
	return counts.verdict(packages, readErr, waitErr)
}

// together lets several goroutines write to one output.
type together struct {
	mu  sync.Mutex
	out io.Writer
}

// Write implements io.Writer.
func (t *together) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.Write(b)
}

// pipe starts the command and returns its standard output.
func (r *runner) pipe(cmd *exec.Cmd) (io.Reader, error) {
	cmd.Stdout = nil
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("read the tests' output: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start the tests: %w", err)
	}
	return events, nil
}

// testEvent is one line of `go test -json`.
type testEvent struct {
	Action     string
	Package    string
	ImportPath string // of a build
	Test       string
	Elapsed    float64
	Output     string
}

// testCounts is what came of one or several runs.
type testCounts struct {
	passed  int
	failed  []string
	skipped []string
	ran     map[string]int // tests passed by package
}

// verdict turns counts and exit codes into one short error. A test that skips itself is a failure: nothing
// would say that it never runs.
func (c testCounts) verdict(packages []testPackage, readErr, waitErr error) error {
	var wrong []string
	if len(c.failed) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d failed (%s)", len(c.failed), strings.Join(first(c.failed, 5), ", ")))
	}
	if len(c.skipped) > 0 {
		wrong = append(wrong, fmt.Sprintf("%d skipped themselves (%s)",
			len(c.skipped), strings.Join(first(c.skipped, 5), ", ")))
	}
	if len(c.failed) == 0 {
		for _, pkg := range packages {
			if c.ran[pkg.path] == 0 {
				wrong = append(wrong, "no test ran in "+pkg.path)
			}
		}
	}
	switch {
	case len(wrong) > 0:
		return errors.New(strings.Join(wrong, ", "))
	case readErr != nil:
		return readErr
	case waitErr != nil:
		return fmt.Errorf("go test: %w", waitErr)
	default:
		return nil
	}
}

func first(names []string, n int) []string {
	if len(names) > n {
		return append(slices.Clone(names[:n]), "…")
	}
	return names
}

// readTestEvents counts results, prints a line a package and the output of what failed. Lines that are not
// events, such as those of the servers beside the tests, are passed through.
func readTestEvents(events io.Reader, out io.Writer) (testCounts, error) {
	t := testReader{out: out, counts: testCounts{ran: make(map[string]int)}, output: make(map[string][]string)}
	lines := bufio.NewReader(events)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			t.line(line)
		}
		if errors.Is(err, io.EOF) {
			return t.counts, nil
		}
		if err != nil {
			return t.counts, fmt.Errorf("read the tests' output: %w", err)
		}
	}
}

// testReader keeps the output of what has not finished, to print it if it fails.
type testReader struct {
	out    io.Writer
	counts testCounts
	output map[string][]string // by package and test
}

func (t *testReader) line(line []byte) {
	var e testEvent
	if err := json.Unmarshal(line, &e); err != nil || e.Action == "" {
		_, _ = t.out.Write(line)
		return
	}
	id := e.Package + e.ImportPath + "." + e.Test
	switch e.Action {
	case "output", "build-output":
		t.output[id] = append(t.output[id], e.Output)
	case "pass":
		delete(t.output, id)
		if e.Test != "" {
			t.counts.passed++
			t.counts.ran[e.Package]++
			return
		}
		fmt.Fprintf(t.out, "ok   %s (%d passed, %.1fs)\n", e.Package, t.counts.ran[e.Package], e.Elapsed)
	case "skip":
		delete(t.output, id)
		if e.Test != "" {
			t.counts.skipped = append(t.counts.skipped, id)
		}
	case "fail", "build-fail":
		fmt.Fprintf(t.out, "FAIL %s\n%s", strings.TrimSuffix(id, "."), strings.Join(t.output[id], ""))
		delete(t.output, id)
		if e.Test != "" || e.Action == "build-fail" || !t.failedWithin(e.Package) {
			t.counts.failed = append(t.counts.failed, strings.TrimSuffix(id, "."))
		}
	}
}

// failedWithin says whether a test of the package was already counted as failed, so that the package is not counted too.
func (t *testReader) failedWithin(pkg string) bool {
	return slices.ContainsFunc(t.counts.failed, func(name string) bool { return strings.HasPrefix(name, pkg+".") })
}
