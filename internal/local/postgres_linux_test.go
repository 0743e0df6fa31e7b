package local_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

// tmpfs mounts a small file system for the test.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	testkit.NeedsRoot(t)
	dir := testkit.SharedDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, options+",mode=0755"); err != nil {
		t.Fatalf("mounting a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmounting %s: %v", dir, err)
		}
	})
	return dir
}

// zeros is an endless file.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// fill leaves no space in a folder's file system, and returns the file that takes it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is full
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	return f.Name()
}

func mustBeDiskFull(t *testing.T, err error, dir string) {
	t.Helper()
	var full *local.DiskFullError
	if !errors.As(err, &full) || full.Dir != dir {
		t.Fatalf("error = %v, want a DiskFullError of %s", err, dir)
	}
	if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "free about") {
		t.Errorf("%q is not one line that says what to do", err)
	}
}

func TestAsRootDiskFullForTheData(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(tmpfs(t, "size=8m"), "pg")
	_, err := local.StartPostgres(t.Context(), local.PostgresConfig{Dir: dir})
	mustBeDiskFull(t, err, dir)
}

func TestAsRootDiskFullForNATS(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, "size=64k")
	fill(t, dir)
	_, err := local.StartNATS(t.Context(), local.NATSConfig{Dir: dir})
	mustBeDiskFull(t, err, dir)
}

func TestAsRootDiskFullForAServerThatRanBefore(t *testing.T) {
	t.Parallel()
	mounted := tmpfs(t, "size=256m")
	dir := filepath.Join(mounted, "pg")
	stop(t, startPostgres(t, local.PostgresConfig{Dir: dir}))
	filler := fill(t, mounted)

	_, err := local.StartPostgres(t.Context(), local.PostgresConfig{Dir: dir})
	mustBeDiskFull(t, err, dir)

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	stop(t, startPostgres(t, local.PostgresConfig{Dir: dir})) // before the file system goes
}

func TestAsRootCacheNotWritable(t *testing.T) {
	t.Parallel()
	dir := tmpfs(t, "ro")
	_, err := local.StartPostgres(t.Context(), local.PostgresConfig{Cache: filepath.Join(dir, "a", "b")})
	var refused *local.CacheError
	if !errors.As(err, &refused) || refused.Dir != dir || refused.Owner != "root" {
		t.Fatalf("error = %v, want a CacheError of %s and root", err, dir)
	}
	if strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "XDG_CACHE_HOME") {
		t.Errorf("%q is not one line that says what to do", err)
	}
}

func TestAsRootFolderClosedToPostgres(t *testing.T) {
	t.Parallel()
	testkit.NeedsRoot(t)
	closed := t.TempDir() // for its owner alone
	if err := os.Chmod(closed, 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := local.StartPostgres(t.Context(), local.PostgresConfig{Dir: filepath.Join(closed, "pg")})
	if refused, ok := errors.AsType[*local.FolderError](err); !ok || refused.Dir != closed {
		t.Fatalf("error = %v, want a FolderError of %s", err, closed)
	}
}
