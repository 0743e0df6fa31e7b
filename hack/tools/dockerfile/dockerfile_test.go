package dockerfile

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/linter"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
)

const root = "../../.."

// stages parses the Dockerfile and fails on whatever BuildKit would warn of.
func stages(t *testing.T) []instructions.Stage {
	t.Helper()
	f, err := os.Open(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	parsed, err := parser.Parse(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range parsed.Warnings {
		t.Errorf("warning: %s", w.Short)
	}
	found, _, err := instructions.Parse(parsed.AST, linter.New(&linter.Config{
		Warn: func(rule, _, _, msg string, _ []parser.Range) { t.Errorf("%s: %s", rule, msg) },
	}))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// commands of one kind in a stage.
func commands[T any](s instructions.Stage) []T {
	var found []T
	for _, c := range s.Commands {
		if typed, ok := c.(T); ok {
			found = append(found, typed)
		}
	}
	return found
}

func TestTheImageHoldsEveryBinary(t *testing.T) {
	t.Parallel()
	all := stages(t)
	build, final := all[0], all[len(all)-1]
	binaries, err := filepath.Glob(filepath.Join(root, "cmd", "*", "main.go"))
	if err != nil || len(binaries) < 2 {
		t.Fatalf("commands = %v, %v", binaries, err)
	}
	var built strings.Builder
	for _, run := range commands[*instructions.RunCommand](build) {
		built.WriteString(strings.Join(run.CmdLine, " ") + " ")
	}
	var copied []string
	for _, c := range commands[*instructions.CopyCommand](final) {
		copied = append(copied, c.SourcePaths...)
	}
	for _, main := range binaries {
		name := filepath.Base(filepath.Dir(main))
		if !strings.Contains(built.String(), "./cmd/"+name+" ") {
			t.Errorf("cmd/%s is not built", name)
		}
		if !slices.Contains(copied, "/out/"+name) {
			t.Errorf("%s is not copied into the image", name)
		}
	}
}

func TestTheImageCanRunUnderARestrictedProfile(t *testing.T) {
	t.Parallel()
	all := stages(t)
	final := all[len(all)-1]
	if final.BaseName != "scratch" {
		t.Errorf("base = %q, want scratch: static binaries need nothing else", final.BaseName)
	}
	users := commands[*instructions.UserCommand](final)
	if len(users) != 1 || users[0].User != "65532:65532" {
		t.Errorf("users = %v, want one number: a name cannot be checked by runAsNonRoot", users)
	}
	if n := len(commands[*instructions.RunCommand](final)); n != 0 {
		t.Errorf("%d RUN in the final stage: there is no shell", n)
	}
	for _, e := range commands[*instructions.EntrypointCommand](final) {
		if e.PrependShell {
			t.Error("the entry point goes through a shell")
		}
	}
}

func TestTheBinariesAreStaticAndReproducible(t *testing.T) {
	t.Parallel()
	build := stages(t)[0]
	var text strings.Builder
	for _, c := range build.Commands {
		fmt.Fprintln(&text, c)
	}
	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "GOARCH=${TARGETARCH}"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the build has no %s", want)
		}
	}
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	var version string
	for line := range strings.Lines(string(mod)) {
		if v, ok := strings.CutPrefix(line, "go "); ok {
			version = strings.TrimSpace(v)
		}
	}
	minor := version[:strings.LastIndex(version, ".")+1]
	if version == "" || !strings.HasPrefix(build.BaseName, "golang:"+minor) {
		t.Errorf("built by %q, go.mod wants %s", build.BaseName, version)
	}
}

func TestTheBuildContextHoldsNothingUnneeded(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	lines = slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "#") })
	if len(lines) == 0 || lines[0] != "*" {
		t.Errorf("lines = %v, want everything left out first", lines)
	}
	for _, l := range lines[1:] {
		if allowed, ok := strings.CutPrefix(l, "!"); ok && strings.ContainsAny(allowed, "*.") &&
			allowed != "go.mod" && allowed != "go.sum" {
			t.Errorf("%s lets in more than one directory", l)
		}
	}
}
