package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func (r *runner) lintSteps(ctx context.Context) {
	r.step(ctx, "layout", r.checkLayout)
	r.step(ctx, "lint", func(ctx context.Context) error { return r.golangci(ctx, ".golangci.yml", "./...") })
	r.step(ctx, "Dockerfile", func(ctx context.Context) error {
		return r.sh(ctx, "go", "-C", filepath.Join("hack", "tools", "dockerfile"), "test", "-count=1", "./...")
	})
	r.step(ctx, "Watermill's forwarder", func(ctx context.Context) error { // a module of its own
		return r.sh(ctx, "go", "-C", filepath.Join("hack", "bench", "watermill"), "vet", "-mod=readonly", "./...")
	})
	if r.exists("api") {
		r.step(ctx, "api lint", func(ctx context.Context) error {
			return r.golangci(ctx, ".golangci-kal.yml", "./api/...")
		})
	}
}

func (r *runner) verifySteps(ctx context.Context) {
	r.sourceSteps(ctx)
	r.vulnerabilitySteps(ctx)
}

// sourceSteps look at what is in the repository.
func (r *runner) sourceSteps(ctx context.Context) {
	r.step(ctx, "generated files", r.checkGenerated)
	r.step(ctx, "go.mod", func(ctx context.Context) error { return r.sh(ctx, "go", "mod", "tidy", "-diff") })
	r.lintSteps(ctx)
}

func (r *runner) vulnerabilitySteps(ctx context.Context) {
	r.step(ctx, "vulnerabilities", r.checkVulnerabilities)
}

func (r *runner) golangci(ctx context.Context, config, packages string) error {
	bin, err := r.build(ctx, golangci)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for range 2 {
		out.Reset()
		cmd := r.command(ctx, nil, bin, "run", "--config", config, packages)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err = cmd.Run(); err == nil || !bytes.Contains(out.Bytes(), []byte(loaderRace)) {
			break
		}
	}
	_, _ = out.WriteTo(r.out) // as every other line
	if err != nil {
		return errors.New("see the lines above")
	}
	return nil
}

// loaderRace is what the linter says of packages of the standard library now and then on a busy machine. A second run
// loads them.
const loaderRace = "returned nil but no error) (typecheck)"

func (r *runner) checkVulnerabilities(ctx context.Context) error {
	db, err := r.vulnerabilities(ctx)
	if err != nil {
		return err
	}
	bin, err := r.build(ctx, govulncheck)
	if err != nil {
		return err
	}
	// The standard library counts as that of the toolchain in go.mod, with which releases are built. Whoever builds with
	// an older one lacks its fixes; that is for them to mend, and no reason why a change here should not pass.
	toolchain, err := r.goOutput(ctx, "mod", "edit", "-json")
	if err != nil {
		return err
	}
	var mod struct{ Toolchain string }
	if err := json.Unmarshal([]byte(toolchain), &mod); err != nil {
		return fmt.Errorf("read go.mod: %w", err)
	}
	cmd := r.command(ctx, []string{"GOTOOLCHAIN=" + mod.Toolchain}, bin, "-db", "file://"+filepath.ToSlash(db), "./...")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("with %s: %w", mod.Toolchain, err)
	}
	return nil
}

// generate writes every generated file: deep copies and resource definitions of the API, then whatever
// the packages ask for with go:generate.
func (r *runner) generate(ctx context.Context) error {
	if r.exists("api") {
		bin, err := r.build(ctx, controllerGen)
		if err != nil {
			return err
		}
		err = r.sh(ctx, bin, "paths=./api/...",
			"object:headerFile=hack/boilerplate.go.txt",
			"crd:crdVersions=v1", "output:crd:dir=config/crd")
		if err != nil {
			return err
		}
		err = r.sh(ctx, bin, "paths=./internal/controller/...",
			"rbac:roleName=postrider-manager", "output:rbac:dir=config/rbac")
		if err != nil {
			return err
		}
	}
	return r.sh(ctx, "go", "generate", "./...")
}

// checkGenerated generates again and names what changed. It compares files and not commits, so that it
// says the same in a clone with other, unfinished work.
func (r *runner) checkGenerated(ctx context.Context) error {
	before, err := r.snapshot()
	if err != nil {
		return err
	}
	if err := r.generate(ctx); err != nil {
		return err
	}
	after, err := r.snapshot()
	if err != nil {
		return err
	}
	if changed := differences(before, after); len(changed) > 0 {
		return fmt.Errorf("these were out of date and are now right, commit them: %s", strings.Join(changed, ", "))
	}
	return nil
}

type fileHashes map[string][sha256.Size]byte

// snapshot hashes every file of the clone but git's own and what builds leave behind.
func (r *runner) snapshot() (fileHashes, error) {
	hashes := make(fileHashes)
	err := r.walk(func(path string) error {
		b, err := os.ReadFile(filepath.Join(r.root, path))
		if err != nil {
			return err
		}
		hashes[path] = sha256.Sum256(b)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the clone: %w", err)
	}
	return hashes, nil
}

// walk calls do with the path of every regular file, relative to the root.
func (r *runner) walk(do func(path string) error) error {
	skip := map[string]bool{".git": true, "bin": true, ".run": true}
	return filepath.WalkDir(r.root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(r.root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && skip[rel] {
			return filepath.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		return do(rel)
	})
}

// differences names, in order, the files that are not the same in both.
func differences(before, after fileHashes) []string {
	var names []string
	for name, hash := range after {
		if old, ok := before[name]; !ok || old != hash {
			names = append(names, name)
		}
	}
	for name := range before {
		if _, ok := after[name]; !ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
