package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// fakePrepare makes a tiny install and counts how often it was asked to.
func fakePrepare(asked *atomic.Int32) func(context.Context, string, postgresInstall, string, *os.File) error {
	return func(_ context.Context, version string, made postgresInstall, _ string, _ *os.File) error {
		asked.Add(1)
		return errors.Join(
			os.MkdirAll(made.programs(), 0o700),
			os.MkdirAll(made.data(), 0o700),
			os.WriteFile(filepath.Join(made.data(), "PG_VERSION"), []byte(version), 0o600),
		)
	}
}

func mustBeComplete(t *testing.T, i postgresInstall) {
	t.Helper()
	for _, path := range []string{i.programs(), filepath.Join(i.data(), "PG_VERSION"), i.password()} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}

func TestCacheIsFilledOnceByManyAtTheSameTime(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	dir := filepath.Join(t.TempDir(), "cache")
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			c := cache{dir: dir, prepare: fakePrepare(&asked)} // as in a process of its own: with a lock of its own
			i, err := c.postgres(t.Context(), "17.6.0")
			if err != nil {
				t.Errorf("postgres() error = %v", err)
				return
			}
			mustBeComplete(t, i)
		})
	}
	all.Wait()
	if got := asked.Load(); got != 1 {
		t.Errorf("fetched %d times, want once", got)
	}
}

func TestCacheAfterAFailedFetch(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	dir := t.TempDir()
	cause := errors.New("no route to host")
	broken := cache{dir: dir, prepare: func(
		_ context.Context, _ string, made postgresInstall, _ string, _ *os.File,
	) error {
		return errors.Join(os.MkdirAll(made.programs(), 0o700), cause) // half of it is there
	}}
	_, err := broken.postgres(t.Context(), "17.6.0")
	var fetch *FetchError
	if !errors.As(err, &fetch) || !errors.Is(err, cause) {
		t.Fatalf("error = %v, want a FetchError with the cause", err)
	}
	i, err := cache{dir: dir, prepare: fakePrepare(&asked)}.postgres(t.Context(), "17.6.0")
	if err != nil {
		t.Fatalf("after the network came back: %v", err)
	}
	mustBeComplete(t, i)
}

func TestCacheAfterAKilledFetch(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	c := cache{dir: t.TempDir(), prepare: fakePrepare(&asked)}
	i, err := c.postgres(t.Context(), "17.6.0")
	if err != nil {
		t.Fatal(err)
	}
	// A process that is killed leaves the lock's file and the folder under its unfinished name.
	if err := os.Rename(i.dir, i.dir+".partial"); err != nil {
		t.Fatal(err)
	}
	if i, err = c.postgres(t.Context(), "17.6.0"); err != nil {
		t.Fatal(err)
	}
	mustBeComplete(t, i)
	if got := asked.Load(); got != 2 {
		t.Errorf("fetched %d times, want twice: what is unfinished must not be used", got)
	}
}

func TestWaitingForTheCacheEndsWithTheContext(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	c := cache{dir: t.TempDir(), prepare: fakePrepare(&asked)}
	i, err := c.postgres(t.Context(), "17.6.0")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(i.dir); err != nil {
		t.Fatal(err)
	}
	lock, err := lockFile(t.Context(), i.dir+".lock")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close() //nolint:errcheck // gives it back
	ctx, cancel := context.WithTimeout(t.Context(), 2*lockPollInterval)
	defer cancel()
	if _, err := c.postgres(ctx, "17.6.0"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error = %v, want the deadline", err)
	}
}

func TestPrepareError(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err  error
		want string
	}{
		"success is none":      {nil, ""},
		"a full disk is named": {fmt.Errorf("write: %w", syscall.ENOSPC), "no space left on the device of /d"},
		"also when a program says so": {
			errors.New(`initdb: could not write: No space left on device`), "no space left on the device of /d",
		},
		"an interruption stays itself": {context.Canceled, context.Canceled.Error()},
		"the rest is a failed fetch":   {errors.New("unable to connect"), "connect this machine to the internet"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := prepareError("17.6.0", "/d", tc.err)
			if tc.want == "" {
				if err != nil {
					t.Errorf("error = %v, want none", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error = %v, want %q", err, tc.want)
			}
		})
	}
}

func TestCacheDir(t *testing.T) {
	t.Setenv("HOME", "/home/someone")
	for given, want := range map[string]string{
		"":       "/home/someone/.cache/postrider",
		"/other": "/other/postrider",
	} {
		t.Setenv("XDG_CACHE_HOME", given)
		if got, err := CacheDir(); err != nil || got != want {
			t.Errorf("CacheDir() with XDG_CACHE_HOME=%q = %q, %v, want %q", given, got, err, want)
		}
	}
}
