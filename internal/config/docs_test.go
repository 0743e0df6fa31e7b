package config_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/config.md")

const docsFile = "../../docs/config.md"

const docsHead = `# Config file

<!-- Generated from internal/config by make generate. Do not edit. -->

The one file between the operator and a worker. The operator (or ` + "`postrider up`" + `) writes it; a relay or
consumer reads it, follows it while it runs, and refuses what it does not know: an unknown field, a field
given twice, a contradiction. A file that is refused changes nothing; ` + "`/statusz`" + ` says why.
Manager and workers may be one release apart: of a file of the next version unknown fields are left out.

It holds values and paths of mounted Secrets, never a credential. Durations are text such as "30s".
`

// TestDocsDescribeTheFile keeps docs/config.md what the types say.
func TestDocsDescribeTheFile(t *testing.T) {
	t.Parallel()
	want := docsHead + describe(t)
	if *update {
		if err := os.MkdirAll(filepath.Dir(docsFile), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(docsFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(docsFile)
	if err != nil {
		t.Fatalf("%v: run make generate", err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("docs/config.md is not current, run make generate:\n%s", diff)
	}
}

// describe writes one table a struct, in the order of the source.
func describe(t *testing.T) string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for _, decl := range file.Decls {
		group, ok := decl.(*ast.GenDecl)
		if !ok || group.Tok != token.TYPE {
			continue
		}
		for _, spec := range group.Specs {
			named, isType := spec.(*ast.TypeSpec)
			if !isType {
				continue
			}
			fields, isStruct := named.Type.(*ast.StructType)
			if !isStruct {
				continue
			}
			fmt.Fprintf(&out, "\n## %s\n\n%s\n\n| field | type | meaning |\n|---|---|---|\n",
				named.Name.Name, strings.TrimSpace(group.Doc.Text()))
			for _, f := range fields.Fields.List {
				row(&out, f)
			}
		}
	}
	return out.String()
}

func row(out *strings.Builder, f *ast.Field) {
	tag := reflect.StructTag(strings.Trim(f.Tag.Value, "`")).Get("json")
	name, options, _ := strings.Cut(tag, ",")
	meaning := strings.TrimSpace(f.Doc.Text())
	if meaning == "" {
		meaning = strings.TrimSpace(f.Comment.Text())
	}
	if strings.Contains(options, "omitempty") {
		meaning = strings.TrimSpace("Optional. " + meaning)
	}
	meaning = strings.ReplaceAll(strings.ReplaceAll(meaning, "\n", " "), "|", `\|`)
	fmt.Fprintf(out, "| `%s` | %s | %s |\n", name, typeName(f.Type), meaning)
}

// typeName links to the table of a type of ours.
func typeName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.ArrayType:
		return "list of " + typeName(x.Elt)
	case *ast.Ident:
		switch x.Name {
		case "string":
			return "text"
		case "int", "int32", "int64":
			return "number"
		case "Duration":
			return "duration"
		default:
			return fmt.Sprintf("[%s](#%s)", x.Name, strings.ToLower(x.Name))
		}
	default:
		return fmt.Sprintf("%T", e)
	}
}
