package worker

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postrider/postrider/internal/mount"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// remount lays files out as the kubelet does: a version directory, the link ..data to it, links to the files.
func remount(t *testing.T, dir, version, content string) {
	t.Helper()
	write(t, filepath.Join(dir, version, "password"), content)
	next := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(version, next); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "password")
	if _, err := os.Lstat(link); err == nil {
		return
	}
	if err := os.Symlink(filepath.Join("..data", "password"), link); err != nil {
		t.Fatal(err)
	}
}

func TestAChangeOfContentIsSeen(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		before, change func(t *testing.T, dir string)
		path           string
	}{
		"when a file is written in place": {
			before: func(t *testing.T, dir string) { t.Helper(); write(t, filepath.Join(dir, "a.json"), "1") },
			change: func(t *testing.T, dir string) { t.Helper(); write(t, filepath.Join(dir, "a.json"), "2") },
			path:   "a.json",
		},
		"when a file is replaced by a rename": {
			before: func(t *testing.T, dir string) { t.Helper(); write(t, filepath.Join(dir, "a.json"), "1") },
			change: func(t *testing.T, dir string) {
				t.Helper()
				write(t, filepath.Join(dir, "b.json"), "2")
				if err := os.Rename(filepath.Join(dir, "b.json"), filepath.Join(dir, "a.json")); err != nil {
					t.Fatal(err)
				}
			},
			path: "a.json",
		},
		"when the kubelet switches a mount to its next version": {
			before: func(t *testing.T, dir string) { t.Helper(); remount(t, filepath.Join(dir, "s"), "..1", "old") },
			change: func(t *testing.T, dir string) { t.Helper(); remount(t, filepath.Join(dir, "s"), "..2", "new") },
			path:   "s",
		},
		"when a directory that was missing appears": {
			before: func(*testing.T, string) {},
			change: func(t *testing.T, dir string) { t.Helper(); write(t, filepath.Join(dir, "s", "username"), "me") },
			path:   "s",
		},
		"when a file of a directory goes": {
			before: func(t *testing.T, dir string) { t.Helper(); write(t, filepath.Join(dir, "s", "ca.crt"), "x") },
			change: func(t *testing.T, dir string) {
				t.Helper()
				if err := os.Remove(filepath.Join(dir, "s", "ca.crt")); err != nil {
					t.Fatal(err)
				}
			},
			path: "s",
		},
	}
	for name, tc := range cases {
		for how, events := range map[string]bool{"by an event": true, "by polling": false} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				tc.before(t, dir)
				path := filepath.Join(dir, tc.path)
				look := func(t *testing.T, w *fileWatch) {
					t.Helper()
					tc.change(t, dir)
					got, err := w.changes(t.Context())
					if err != nil || !slices.Equal(got, []string{path}) {
						t.Errorf("changes() = %v, %v, want %s", got, err, path)
					}
				}
				if events {
					w := newFileWatch(quiet(), []string{path})
					defer w.close()
					look(t, w)
					return
				}
				synctest.Test(t, func(t *testing.T) { look(t, polling(path)) })
			})
		}
	}
}

// polling returns a watch that gets no events.
func polling(paths ...string) *fileWatch {
	w := &fileWatch{log: quiet(), paths: map[string]mount.Digest{}, refused: map[string]bool{}}
	w.follow(paths)
	return w
}

func TestAnEventEndsTheWaitLongBeforeThePoll(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.json")
	write(t, path, "1")
	w := newFileWatch(quiet(), []string{path})
	defer w.close()
	start := time.Now()
	next := make(chan error, 1)
	go func() {
		_, err := w.changes(t.Context())
		next <- err
	}()
	<-time.After(2 * fileSettle) // the first look is over: only an event or the poll can end the wait
	write(t, path, "2")
	if err := <-next; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > filePoll-time.Second {
		t.Errorf("the change was seen after %v, as late as by polling", took)
	}
}

func TestATouchedFileIsNoChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "config.json")
		write(t, path, "1")
		w := polling(path)
		write(t, path, "1")
		if err := os.Chtimes(path, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*filePoll)
		defer cancel()
		if got, err := w.changes(ctx); err == nil {
			t.Errorf("changes() = %v, want none", got)
		}
	})
}
