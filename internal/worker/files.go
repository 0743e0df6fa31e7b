package worker

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	// filePoll is how often files are compared whatever the kernel says: network file systems send no events.
	filePoll = 5 * time.Second
	// fileSettle is the pause between an event and the look: a writer makes several, and a busy directory
	// must not be read without end.
	fileSettle = 100 * time.Millisecond
	// maxWatchedBytes bounds what is read of one file, maxWatchedFiles how many of one directory.
	maxWatchedBytes = 2 << 20
	maxWatchedFiles = 64
)

// digest stands for the content of a path: a file, or the files of a directory.
type digest [sha256.Size]byte

// fileWatch tells when the content of files or directories changes. Events of the kernel only say when to
// look: content is compared, so that a touched file is no change and a missed event is a short delay.
// It follows the symbolic links by which the kubelet switches a mount to its next version.
type fileWatch struct {
	log     *slog.Logger
	paths   map[string]digest
	refused map[string]bool   // directories whose missing events were told of
	notify  *fsnotify.Watcher // nil where the kernel gives none: polling goes on
}

// newFileWatch takes the present content of the paths as known.
func newFileWatch(log *slog.Logger, paths []string) *fileWatch {
	w := &fileWatch{log: log, paths: make(map[string]digest), refused: make(map[string]bool)}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		log.Warn("No file events, files are polled", "period", filePoll.String(), "err", err)
	} else {
		w.notify = notify
	}
	w.follow(paths)
	return w
}

// follow makes paths the ones to watch. What was watched before keeps the content it was last seen with.
func (w *fileWatch) follow(paths []string) {
	next := make(map[string]digest, len(paths))
	for _, p := range paths {
		if known, ok := w.paths[p]; ok {
			next[p] = known
		} else {
			next[p] = digestOf(p)
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
				w.log.Warn("No file events for a directory, it is polled", "dir", dir, "err", err)
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
		if now := digestOf(p); now != known {
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

// digestOf reads a file, or the files right under a directory, in order of name. What cannot be read counts
// as missing: whoever needs it says so better.
func digestOf(path string) digest {
	h := sha256.New()
	entries, err := os.ReadDir(path)
	switch {
	case err == nil:
		for _, e := range entries[:min(len(entries), maxWatchedFiles)] {
			if name := e.Name(); name[0] != '.' { // the kubelet's own ..data and versions
				addFile(h, name, filepath.Join(path, name))
			}
		}
	case errors.Is(err, fs.ErrNotExist):
	default:
		addFile(h, "", path)
	}
	return digest(h.Sum(nil))
}

func addFile(h io.Writer, name, path string) {
	f, err := os.Open(path) //nolint:gosec // the paths are the operator's and the config's
	if err != nil {
		return
	}
	defer func() { _ = f.Close() }() // read only
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return
	}
	content := sha256.New()
	if _, err := io.Copy(content, io.LimitReader(f, maxWatchedBytes)); err != nil {
		return
	}
	_, _ = h.Write([]byte(name + "\x00")) // a hash never fails
	_, _ = h.Write(content.Sum(nil))
}
