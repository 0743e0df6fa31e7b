package local_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/test/testkit"
)

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
	dir := filepath.Join(testkit.Disk(t, "size=8m"), "pg")
	_, err := local.StartPostgres(t.Context(), local.PostgresConfig{Dir: dir})
	mustBeDiskFull(t, err, dir)
}

func TestAsRootDiskFullForNATS(t *testing.T) {
	t.Parallel()
	dir := testkit.Disk(t, "size=64k")
	testkit.Fill(t, dir)
	_, err := local.StartNATS(t.Context(), local.NATSConfig{Dir: dir})
	mustBeDiskFull(t, err, dir)
}

func TestAsRootDiskFullForAServerThatRanBefore(t *testing.T) {
	t.Parallel()
	mounted := testkit.Disk(t, "size=256m")
	dir := filepath.Join(mounted, "pg")
	stop(t, startPostgres(t, local.PostgresConfig{Dir: dir}))
	free := testkit.Fill(t, mounted)

	_, err := local.StartPostgres(t.Context(), local.PostgresConfig{Dir: dir})
	mustBeDiskFull(t, err, dir)

	free()
	stop(t, startPostgres(t, local.PostgresConfig{Dir: dir})) // before the file system goes
}

func TestAsRootCacheNotWritable(t *testing.T) {
	t.Parallel()
	dir := testkit.Disk(t, "ro")
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
