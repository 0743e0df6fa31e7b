// Package mount follows the files of Secrets that are mounted into a process.
//
// It promises that a change of what is in the files is told from one of the files around it, and that connections are
// asked to be replaced only after one of their own proved that the new files work. It makes no connection itself and puts
// nothing of a file into an error.
package mount

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// maxFileBytes bounds what is read of one file, maxFiles how many of one directory.
	maxFileBytes = 2 << 20
	maxFiles     = 64
	copyBytes    = 2 << 10 // read at once
)

// Digest stands for the content of files.
type Digest [sha256.Size]byte

// Sum returns the digest of a path: of a file, or of the files right under a directory, in order of name, but for those
// that begin with a dot, where the kubelet keeps the versions of a mount. It follows the links by which the kubelet
// switches to the next. What cannot be read counts as missing, in the digest, and is the error.
func Sum(path string) (Digest, error) {
	h := sha256.New()
	entries, err := os.ReadDir(path)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		err = addFile(h, "", path)
	case err != nil:
		err = fmt.Errorf("list the files of a Secret: %w", err)
	default:
		for _, e := range entries[:min(len(entries), maxFiles)] {
			if name := e.Name(); name[0] != '.' {
				err = errors.Join(err, addFile(h, name, filepath.Join(path, name)))
			}
		}
	}
	return Digest(h.Sum(nil)), err
}

// sumAll returns the digest of all paths in their order. One that cannot be read is an error.
func sumAll(paths []string) (Digest, error) {
	h := sha256.New()
	for _, path := range paths {
		sum, err := Sum(path)
		if err != nil {
			return Digest{}, err
		}
		_, _ = h.Write(sum[:]) // a hash never fails
	}
	return Digest(h.Sum(nil)), nil
}

func addFile(h io.Writer, name, path string) error {
	f, err := os.Open(path) //nolint:gosec // the paths are the operator's and the config's
	if err != nil {
		return fmt.Errorf("read a Secret's file: %w", err)
	}
	defer func() { _ = f.Close() }() // read only
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return err //nolint:wrapcheck // names the file
	}
	content := sha256.New()
	// Files are small, and read each second by everybody who follows them: io.Copy's buffer of 32 KiB would be most of what
	// an idle worker leaves to the garbage collector.
	if _, err := io.CopyBuffer(content, io.LimitReader(f, maxFileBytes), make([]byte, copyBytes)); err != nil {
		return fmt.Errorf("read a Secret's file: %w", err)
	}
	_, _ = h.Write([]byte(name + "\x00")) // a hash never fails
	_, _ = h.Write(content.Sum(nil))
	return nil
}
