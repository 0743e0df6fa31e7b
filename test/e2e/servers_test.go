//go:build kubernetes

package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/cluster"
)

// serverImages are the images that the quick start has a cluster fetch, by their files in the clone's folder of images.
// No registry is reachable from the sandbox: they are made of the servers that all other tests run.
func serverImages() []string { return []string{"quickstart-postgres.tar", "quickstart-nats.tar"} }

// buildServers makes the images, outside of the sandbox.
func buildServers(ctx context.Context) error {
	dir, err := cluster.Binary(ctx, "")
	if err != nil {
		return err
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", dir,
		"github.com/nats-io/nats-server/v2", "./test/e2e/postgres", "./hack/quickstart-cluster")
	if build.Dir, err = cluster.Root(ctx); err != nil {
		return err
	}
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the servers of the images: %w: %s", err, bytes.TrimSpace(said))
	}
	postgres, err := postgresFiles(ctx, dir)
	if err != nil {
		return err
	}
	start := filepath.Join(dir, "postgres")
	postgres["usr/local/bin/postgres"], postgres["usr/local/bin/pg_isready"] = start, start
	for i, image := range []cluster.Image{
		{
			Reference: "docker.io/library/postgres:17", Files: postgres, Entrypoint: []string{"/usr/local/bin/postgres"},
		},
		{
			Reference: "docker.io/library/nats:2", Entrypoint: []string{"/nats-server"},
			Files: map[string]string{"nats-server": filepath.Join(dir, "nats-server")},
		},
	} {
		if err := image.WriteFile(filepath.Join(dir, serverImages()[i])); err != nil {
			return err
		}
	}
	return nil
}

// postgresFiles are the files of the tests' PostgreSQL and the libraries it takes from this machine.
func postgresFiles(ctx context.Context, dir string) (map[string]string, error) {
	files := make(map[string]string)
	server, err := local.StartPostgres(ctx, local.PostgresConfig{}) // which fetches it
	if err != nil {
		return nil, err
	}
	if err := server.Stop(ctx); err != nil {
		return nil, err
	}
	cached, err := local.CacheDir()
	if err != nil {
		return nil, err
	}
	found, _ := filepath.Glob(filepath.Join(cached, "postgres-17.*-linux-*[^k]")) // the pattern is well formed
	if len(found) == 0 {
		return nil, fmt.Errorf("no PostgreSQL 17 in %s", cached)
	}
	install := found[0]
	programs := filepath.Join(install, "programs")
	err = filepath.WalkDir(programs, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files["postgres/"+strings.TrimPrefix(path, install+"/")] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read the tests' PostgreSQL: %w", err)
	}
	files["etc/passwd"] = filepath.Join(dir, "postgres-passwd")
	if err := os.WriteFile(files["etc/passwd"], []byte("postgres:x:999:999::/data:/\n"), 0o644); err != nil {
		return nil, fmt.Errorf("name the server's user: %w", err)
	}
	files["postgres/data.tar"] = filepath.Join(dir, "postgres-data.tar")
	if err := packFolder(files["postgres/data.tar"], filepath.Join(install, "data")); err != nil {
		return nil, err
	}
	needed, err := exec.CommandContext(ctx, "ldd", filepath.Join(programs, "bin", "postgres")).Output()
	if err != nil {
		return nil, fmt.Errorf("read which libraries PostgreSQL needs: %w", err)
	}
	for field := range strings.FieldsSeq(string(needed)) {
		if filepath.IsAbs(field) && !strings.HasPrefix(field, install) {
			files[strings.TrimPrefix(field, "/")] = field
		}
	}
	return files, nil
}

// packFolder writes a folder as a tar, with its empty folders, which an image of files has no place for.
func packFolder(name, dir string) (err error) {
	out, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	w := tar.NewWriter(out)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return fmt.Errorf("pack %s: %w", dir, err)
	}
	return w.Close()
}
