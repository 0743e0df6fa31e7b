package mount_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/postrider/postrider/internal/mount"
)

// Files that the kubelet switches by its link are others; what it keeps beside them does not count.
func TestTheSumFollowsTheMount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	link := func(version string) {
		t.Helper()
		next := filepath.Join(dir, "..data_tmp")
		if err := os.Symlink(version, next); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	for version, content := range map[string]string{"..one": "1", "..two": "2", "..same": "2"} {
		if err := os.Mkdir(filepath.Join(dir, version), 0o700); err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, version, "password"), content)
	}
	link("..one")
	if err := os.Symlink(filepath.Join("..data", "password"), filepath.Join(dir, "password")); err != nil {
		t.Fatal(err)
	}
	first := sum(t, dir)
	link("..two")
	second := sum(t, dir)
	link("..same")
	if first == second || second != sum(t, dir) {
		t.Error("the digest does not follow what is in the files")
	}
}

func TestASumTellsContentsAndNamesApart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	seen := map[mount.Digest]string{}
	note := func(what string) {
		t.Helper()
		now := sum(t, dir)
		if before, is := seen[now]; is {
			t.Errorf("%s has the digest of %s", what, before)
		}
		seen[now] = what
	}
	note("no file")
	put(t, filepath.Join(dir, "username"), "")
	note("an empty file")
	put(t, filepath.Join(dir, "username"), "app")
	note("a file")
	if err := os.Rename(filepath.Join(dir, "username"), filepath.Join(dir, "password")); err != nil {
		t.Fatal(err)
	}
	note("a file of another name")
	put(t, filepath.Join(dir, "username"), "app")
	note("two files")
}

func TestWhatCannotBeReadIsAnErrorAndCountsAsMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	empty := sum(t, dir)
	if err := os.Symlink(filepath.Join(dir, "nowhere"), filepath.Join(dir, "password")); err != nil {
		t.Fatal(err)
	}
	got, err := mount.Sum(dir)
	if err == nil || got != empty {
		t.Errorf("Sum() of a file that is not there = %v, and says that it is: %v", err, got != empty)
	}
	if _, err := mount.Sum(filepath.Join(dir, "gone")); err == nil {
		t.Error("a directory that is not there has a sum without an error")
	}
}

func TestTheSumOfAFileFollowsItsContent(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "ca.crt")
	put(t, file, "one")
	one := sum(t, file)
	put(t, file, "two")
	if one == sum(t, file) {
		t.Error("the digest does not follow the content")
	}
}

func sum(t *testing.T, path string) mount.Digest {
	t.Helper()
	d, err := mount.Sum(path)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
