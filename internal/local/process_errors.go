package local

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// PortInUseError says that the wanted port is taken.
type PortInUseError struct {
	Server string // "PostgreSQL" or "NATS"
	Port   int
}

// Error says what to do.
func (e *PortInUseError) Error() string {
	return fmt.Sprintf("port %d for the embedded %s is in use: stop what listens on it, or choose another port",
		e.Port, e.Server)
}

// DiskFullError says that a server's folder has no space left.
type DiskFullError struct {
	Server string
	Dir    string
}

// Error says what to do.
func (e *DiskFullError) Error() string {
	return fmt.Sprintf("no space left on the device of %s for the embedded %s: free about 200 MB there, "+
		"or choose another folder (TMPDIR names the one for temporary data)", e.Dir, e.Server)
}

// CacheError says that the cache cannot be written.
type CacheError struct {
	Dir   string // the folder that refused, the nearest one that exists
	Owner string // its owner
	Err   error
}

// Error says what to do.
func (e *CacheError) Error() string {
	return fmt.Sprintf("the cache folder %s cannot be written (it belongs to %s): "+
		"give it to the user that runs this, or set XDG_CACHE_HOME to a folder you can write: %v", e.Dir, e.Owner, e.Err)
}

// Unwrap returns the refusal.
func (e *CacheError) Unwrap() error { return e.Err }

// FolderError says that the account PostgreSQL runs as cannot get to its folder.
type FolderError struct {
	Dir string // the folder that is closed to it
}

// Error says what to do.
func (e *FolderError) Error() string {
	return fmt.Sprintf("PostgreSQL refuses to run as root and so runs as uid %d, which cannot enter %s: "+
		"choose a folder that other users may pass through (chmod o+x), such as one below /tmp (TMPDIR)",
		unprivileged, e.Dir)
}

// cacheError names the reason of a failure to fill the cache where it is one a person can mend.
func cacheError(dir string, err error) error {
	switch {
	case errors.Is(err, syscall.ENOSPC) || saysDiskFull(err.Error()):
		return errors.Join(&DiskFullError{Server: "PostgreSQL", Dir: dir}, err)
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		existing := nearestExisting(dir)
		return &CacheError{Dir: existing, Owner: ownerOf(existing), Err: err}
	default:
		return err
	}
}

func saysDiskFull(text string) bool {
	return strings.Contains(strings.ToLower(text), "no space left on device")
}

func nearestExisting(dir string) string {
	for {
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		cut := strings.LastIndexByte(dir, os.PathSeparator)
		if cut <= 0 {
			return string(os.PathSeparator)
		}
		dir = dir[:cut]
	}
}

func ownerOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return "an unknown user"
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "an unknown user"
	}
	id := strconv.FormatUint(uint64(stat.Uid), 10)
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return "uid " + id
}
