package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
)

// A tool is a pinned module below hack/tools and the command built from it.
type tool struct {
	module string
	pkg    string
}

var (
	golangci      = tool{"lint", "sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter"}
	controllerGen = tool{"controller-gen", "sigs.k8s.io/controller-tools/cmd/controller-gen"}
	govulncheck   = tool{"govulncheck", "golang.org/x/vuln/cmd/govulncheck"}
	indexDB       = tool{"govulncheck", "golang.org/x/vulndb/cmd/indexdb"}
)

// build returns the path of the tool's binary, building it when its versions or the Go version changed.
// Runs beside each other build to their own file and rename it into place.
func (r *runner) build(ctx context.Context, t tool) (string, error) {
	dir := filepath.Join("hack", "tools", t.module)
	key, err := r.toolKey(ctx, dir)
	if err != nil {
		return "", err
	}
	path := filepath.Join(r.cache, "tools", filepath.Base(t.pkg)+"-"+key)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	fmt.Fprintf(r.out, "Building %s (once a version)\n", filepath.Base(t.pkg))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("make the tools folder: %w", err)
	}
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer func() { _ = os.Remove(part) }() // not there after the rename
	env := []string{"GOFLAGS=-mod=readonly", "CGO_ENABLED=0"}
	cmd := r.command(ctx, env, "go", "build", "-trimpath", "-o", part, t.pkg)
	cmd.Dir = filepath.Join(r.root, dir)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("build %s: %w", t.pkg, err)
	}
	if err := os.Rename(part, path); err != nil {
		return "", fmt.Errorf("put %s into the cache: %w", t.pkg, err)
	}
	return path, nil
}

// toolKey names a tool's build: its module's versions and the Go that builds it.
func (r *runner) toolKey(ctx context.Context, dir string) (string, error) {
	goVersion, err := r.goOutput(ctx, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	h := sha256.New()
	h.Write([]byte(goVersion))
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile(filepath.Join(r.root, dir, name))
		if err != nil {
			return "", fmt.Errorf("read the versions of a tool: %w", err)
		}
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// vulnerabilities returns the folder of the pinned vulnerability database, indexed for offline use.
func (r *runner) vulnerabilities(ctx context.Context) (string, error) {
	module := filepath.Join("hack", "tools", indexDB.module)
	version, err := r.goOutput(ctx, "list", "-C", module, "-m", "-f", "{{.Version}}", "golang.org/x/vulndb")
	if err != nil {
		return "", err
	}
	path := filepath.Join(r.cache, "vulndb-"+version)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	index, err := r.build(ctx, indexDB)
	if err != nil {
		return "", err
	}
	source, err := r.goOutput(ctx, "list", "-C", module, "-m", "-f", "{{.Dir}}", "golang.org/x/vulndb")
	if err != nil {
		return "", err
	}
	part := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer func() { _ = os.RemoveAll(part) }() // not there after the rename
	if err := r.sh(ctx, index, "-vulns", filepath.Join(source, "data", "osv"), "-out", part); err != nil {
		return "", fmt.Errorf("index the vulnerability database: %w", err)
	}
	if err := os.Rename(part, path); err != nil && !r.exists(path) {
		return "", fmt.Errorf("put the vulnerability database into the cache: %w", err)
	}
	return path, nil
}
