package main

import (
	"bytes"
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"strings"
)

const (
	maxFileLines = 600
	maxTestLines = 900
)

// A package is named for what it gives; these say nothing.
var emptyNames = map[string]bool{
	"util":    true,
	"utils":   true,
	"common":  true,
	"helper":  true,
	"helpers": true,
	"types":   true,
	"models":  true,
	"pkg":     true,
}

// checkLayout checks what no linter does: file lengths and package names.
func (r *runner) checkLayout(context.Context) error {
	found := 0
	err := r.walk(func(name string) error {
		if filepath.Ext(name) != ".go" {
			return nil
		}
		b, err := os.ReadFile(filepath.Join(r.root, name))
		if err != nil {
			return err
		}
		for _, complaint := range layoutComplaints(filepath.ToSlash(name), b) {
			fmt.Fprintf(r.out, "%s: %s\n", name, complaint)
			found++
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the sources: %w", err)
	}
	if found > 0 {
		return fmt.Errorf("%d files are not laid out as CONTRIBUTING.md says", found)
	}
	return nil
}

// layoutComplaints says what is wrong with one Go file's length, folder or package name.
func layoutComplaints(name string, source []byte) []string {
	f, err := parser.ParseFile(token.NewFileSet(), name, source, parser.PackageClauseOnly|parser.ParseComments)
	if err != nil {
		return []string{err.Error()}
	}
	var complaints []string
	for part := range strings.SplitSeq(path.Dir(name), "/") {
		if emptyNames[part] {
			complaints = append(complaints, fmt.Sprintf("folder %q says nothing about what the package gives", part))
		}
	}
	if emptyNames[f.Name.Name] {
		complaints = append(complaints, fmt.Sprintf("package name %q says nothing about what it gives", f.Name.Name))
	}
	limit := maxFileLines
	if strings.HasSuffix(name, "_test.go") {
		limit = maxTestLines
	}
	if lines := bytes.Count(source, []byte("\n")); lines > limit && !ast.IsGenerated(f) {
		complaints = append(complaints, fmt.Sprintf("%d lines, and %d are the most: split it by noun", lines, limit))
	}
	return complaints
}
