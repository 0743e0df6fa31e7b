package integration

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	testNamed    = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	testDeclared = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
)

// A test that was renamed must not leave a promise, or what is said of a fault, without its proof, nor a contract test be
// missing where the promises are.
func TestTheDocsNameTheirTests(t *testing.T) {
	t.Parallel()
	declared, contract := declaredTests(t, "../..")
	promises := namedTests(t, "../../docs/guarantees.md", declared)
	for _, name := range contract {
		if !promises[name] {
			t.Errorf("docs/guarantees.md does not name %s", name)
		}
	}
	namedTests(t, "../../docs/faults.md", declared)
}

// namedTests returns the tests that a document names, each of which must be declared.
func namedTests(t *testing.T, path string, declared map[string]bool) map[string]bool {
	t.Helper()
	docs, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	named := make(map[string]bool)
	for _, m := range testNamed.FindAllStringSubmatch(string(docs), -1) {
		named[m[1]] = true
		if !declared[m[1]] && m[1] != "TestMutation" {
			t.Errorf("%s names %s, which no package has", path, m[1])
		}
	}
	if len(named) == 0 {
		t.Errorf("%s names no test", path)
	}
	return named
}

// declaredTests finds the tests of the module, and those of this package that are named for a promise.
func declaredTests(t *testing.T, root string) (all map[string]bool, contract []string) {
	t.Helper()
	all = make(map[string]bool)
	promise := regexp.MustCompile(`^TestG\d`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), ".") {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range testDeclared.FindAllStringSubmatch(string(content), -1) {
			all[m[1]] = true
			if promise.MatchString(m[1]) {
				contract = append(contract, m[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, contract
}
