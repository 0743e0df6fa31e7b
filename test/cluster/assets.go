// Package cluster gives tests a real Kubernetes control plane: its binaries, built once a version into the cache from
// the module hack/kubernetes, and running copies of it.
//
// With KUBEBUILDER_ASSETS set, the binaries in that folder are used and nothing is built.
package cluster

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	// assetsVariable names a folder with binaries of one's own.
	assetsVariable = "KUBEBUILDER_ASSETS"
	// buildBytes is what the build needs on disk at its peak.
	buildBytes = 12 << 30
	// binary is the one that all parts are links to.
	binary = "kubernetes"
)

// parts are the names that the binary is called by.
func parts() []string {
	return []string{
		"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl",
	}
}

// ErrNotBuilt says that the cache does not have the binaries of this version.
var ErrNotBuilt = errors.New("the Kubernetes binaries are not built: run go run ./hack/cluster, " +
	"or set KUBEBUILDER_ASSETS to a folder that has etcd, kube-apiserver, kube-controller-manager and kubectl")

// Assets returns the folder of the binaries. It builds nothing.
func Assets(ctx context.Context) (string, error) {
	if own := os.Getenv(assetsVariable); own != "" {
		return own, nil
	}
	dir, err := cached(ctx)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, binary)); err != nil {
		return "", ErrNotBuilt
	}
	return dir, nil
}

// Build returns the folder of the binaries and builds them if they are not there. Several builds at once wait for the
// first.
func Build(ctx context.Context, out io.Writer) (string, error) {
	if own := os.Getenv(assetsVariable); own != "" {
		return own, nil
	}
	dir, err := cached(ctx)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, binary)); err == nil {
		return dir, nil
	}
	if err := roomFor(ctx); err != nil {
		return "", err
	}
	fmt.Fprintln(out, "Building Kubernetes (once a version; 6 to 15 minutes on two cores)")
	if err := compile(ctx, dir, out); err != nil {
		return "", err
	}
	return dir, nil
}

// compile builds with the flags that the operator is built with, so that both share the build cache.
func compile(ctx context.Context, dir string, out io.Writer) error {
	module, err := moduleDir(ctx)
	if err != nil {
		return err
	}
	version, err := goOutput(ctx, module, "list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	flags := []string{"-s", "-w"}
	for _, set := range []string{
		"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor, "gitCommit=unknown", "gitTreeState=clean",
	} {
		flags = append(flags, "-X", "k8s.io/component-base/version."+set)
	}
	part := filepath.Join(dir, fmt.Sprintf("%s.%d", binary, os.Getpid()))
	defer func() { _ = os.Remove(part) }() // not there after the rename
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags="+strings.Join(flags, " "), "-o", part, ".")
	cmd.Dir, cmd.Stdout, cmd.Stderr = module, out, out
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=readonly -buildvcs=false")
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build Kubernetes: %w", err)
	}
	for _, name := range parts() {
		link := filepath.Join(dir, name)
		if err := os.Symlink(binary, link); err != nil && !errors.Is(err, os.ErrExist) {
			return fmt.Errorf("name a part of Kubernetes: %w", err)
		}
	}
	if err := os.Rename(part, filepath.Join(dir, binary)); err != nil {
		return fmt.Errorf("put Kubernetes into the cache: %w", err)
	}
	return nil
}

// cached returns the cache folder of this version: of the module, its code and the Go that builds it.
func cached(ctx context.Context) (string, error) {
	base, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache: %w", err)
	}
	module, err := moduleDir(ctx)
	if err != nil {
		return "", err
	}
	toolchain, err := goOutput(ctx, module, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	sum.Write([]byte(toolchain))
	for _, name := range []string{"go.mod", "go.sum", "main.go"} {
		content, err := os.ReadFile(filepath.Join(module, name))
		if err != nil {
			return "", fmt.Errorf("read the versions of Kubernetes: %w", err)
		}
		sum.Write(content)
	}
	return filepath.Join(base, "postrider", "kubernetes-"+hex.EncodeToString(sum.Sum(nil))[:16]), nil
}

// Root returns the folder of the clone.
func Root(ctx context.Context) (string, error) {
	mod, err := goOutput(ctx, ".", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	return filepath.Dir(mod), nil
}

func moduleDir(ctx context.Context) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "hack", "kubernetes"), nil
}

func goOutput(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly")
	var out, failure bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &failure
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, bytes.TrimSpace(failure.Bytes()))
	}
	return strings.TrimSpace(out.String()), nil
}

// roomFor refuses before any work what would fail after minutes.
func roomFor(ctx context.Context) error {
	caches, err := goOutput(ctx, ".", "env", "GOCACHE", "GOMODCACHE")
	if err != nil {
		return err
	}
	for at := range strings.Lines(caches) {
		at = strings.TrimSpace(at)
		var fs syscall.Statfs_t
		if err := syscall.Statfs(at, &fs); err != nil {
			return fmt.Errorf("look at the disk of %s: %w", at, err)
		}
		if free := fs.Bavail * uint64(fs.Bsize); free < buildBytes {
			return fmt.Errorf(
				"%s has %d GB free, and building Kubernetes needs %d: make room, or set XDG_CACHE_HOME and GOCACHE",
				at,
				free>>30,
				buildBytes>>30,
			)
		}
	}
	return nil
}

// lock waits until nobody else builds.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock the cache: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock the cache: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // which unlocks
}
