package worker

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/postrider/postrider/internal/mount"
)

const (
	// filePoll is how often files are compared whatever the kernel says: network file systems send no events.
	filePoll = 5 * time.Second
	// fileSettle is the pause between an event and the look: a writer makes several, and a busy directory
	// must not be read without end.
	fileSettle = 100 * time.Millisecond
)

// fileWatch tells when the content of files or directories changes. Events of the kernel only say when to
// look: content is compared, so that a touched file is no change and a missed event is a short delay.
type fileWatch struct {
	log     *slog.Logger
	paths   map[string]mount.Digest
	refused map[string]bool   // directories whose missing events were told of
	notify  *fsnotify.Watcher // nil where the kernel gives none: polling goes on
}

// newFileWatch takes the present content of the paths as known.
func newFileWatch(log *slog.Logger, paths []string) *fileWatch {
	w := &fileWatch{log: log, paths: make(map[string]mount.Digest), refused: make(map[string]bool)}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("No file events, files are polled", "duration", filePoll.String(), "err", err)
	} else {
		w.notify = notify
	}
	w.follow(paths)
	return w
}

// follow makes paths the ones to watch. What was watched before keeps the content it was last seen with.
func (w *fileWatch) follow(paths []string) {
	next := make(map[string]mount.Digest, len(paths))
	for _, p := range paths {
		if known, ok := w.paths[p]; ok {
			next[p] = known
		} else {
			next[p], _ = mount.Sum(p) // whoever needs what cannot be read says so better
		}
	}
	w.paths = next
	w.subscribe()
}

// subscribe asks for the events of every directory that is there, and of its parent, where a missing one will
// appear. A directory that comes and goes is asked for again by the next call.
func (w *fileWatch) subscribe() {
	if w.notify == nil {
		return
	}
	listed := w.notify.WatchList()
	for p := range w.paths {
		for _, dir := range []string{p, filepath.Dir(p)} {
			info, err := os.Stat(dir)
			if err != nil || !info.IsDir() || slices.Contains(listed, dir) {
				continue
			}
			if err := w.notify.Add(dir); err != nil && !w.refused[dir] {
				w.refused[dir] = true
				w.log.Warn("No file events for a directory, it is polled", "path", dir, "err", err)
			}
		}
	}
}

// changes waits until the content of paths has changed and returns which, or the context's error.
func (w *fileWatch) changes(ctx context.Context) ([]string, error) {
	poll := time.NewTicker(filePoll)
	defer poll.Stop()
	settle := time.After(fileSettle) // a first look, for what changed between two calls
	var events <-chan fsnotify.Event
	var failures <-chan error
	if w.notify != nil {
		events, failures = w.notify.Events, w.notify.Errors
	}
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-events:
			if settle == nil {
				settle = time.After(fileSettle)
			}
			continue
		case err := <-failures: // an overflow, at worst: looking is the answer to that too
			w.log.DebugContext(ctx, "File events failed, looking", "err", err)
			if settle == nil {
				settle = time.After(fileSettle)
			}
			continue
		case <-settle:
			settle = nil
		case <-poll.C:
		}
		w.subscribe()
		if changed := w.compare(); len(changed) > 0 {
			return changed, nil
		}
	}
}

func (w *fileWatch) compare() []string {
	var changed []string
	for p, known := range w.paths {
		if now, _ := mount.Sum(p); now != known { // as above
			w.paths[p] = now
			changed = append(changed, p)
		}
	}
	slices.Sort(changed)
	return changed
}

func (w *fileWatch) close() {
	if w.notify != nil {
		_ = w.notify.Close() // the process ends
	}
}
