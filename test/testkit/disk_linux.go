package testkit

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Disk mounts a small file system for the test, with the options of tmpfs: "size=8m". Only root can.
func Disk(t testing.TB, options string) string {
	t.Helper()
	NeedsRoot(t)
	dir := SharedDir(t)
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

// Fill leaves no space in a folder's file system, and returns what gives it back.
func Fill(t testing.TB, dir string) (free func()) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // it is full
	if _, err := io.Copy(f, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	return func() {
		t.Helper()
		if err := os.Remove(f.Name()); err != nil {
			t.Fatal(err)
		}
	}
}
