package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"

	"github.com/postrider/postrider/internal/local/keeper"
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

// FetchError says that PostgreSQL is not in the cache and could not be fetched.
type FetchError struct {
	Version string
	Err     error
}

// Error says what to do.
func (e *FetchError) Error() string {
	return fmt.Sprintf("PostgreSQL %s is not in the cache and could not be fetched from Maven Central: connect this "+
		"machine to the internet once (HTTPS_PROXY is heeded), or copy the cache folder of a connected one: %v",
		e.Version, e.Err)
}

// Unwrap returns the reason.
func (e *FetchError) Unwrap() error { return e.Err }

// prepareError names the reason of a failure to fetch, unpack and initialise PostgreSQL below dir.
func prepareError(version, dir string, err error) error {
	var known *DiskFullError
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, syscall.ENOSPC) || saysDiskFull(err.Error()):
		return &DiskFullError{Server: "PostgreSQL", Dir: dir}
	default:
		return &FetchError{Version: version, Err: err}
	}
}

// cacheError names the reason of a failure to write the cache where it is one a person can mend.
func cacheError(dir string, err error) error {
	var full *DiskFullError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &full):
		return full
	case errors.Is(err, syscall.ENOSPC):
		return &DiskFullError{Server: "PostgreSQL", Dir: dir}
	case errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EROFS):
		existing := nearestExisting(dir)
		return &CacheError{Dir: existing, Owner: ownerOf(existing), Err: err}
	default:
		return err
	}
}

// ErrGone says that an embedded server cannot be started again, since the process that looks after it has ended.
var ErrGone = keeper.ErrGone

// leastFreeBytes is the space below which a server that failed without a word is taken to have failed for want of it:
// on a full disk it cannot write its log either.
const leastFreeBytes uint64 = 256 << 10

// diskFull names a full disk as the reason of an error where it is one.
func diskFull(server, dir string, err error) error {
	var stat syscall.Statfs_t
	switch {
	case err == nil || errors.Is(err, context.Canceled) || errors.Is(err, keeper.ErrGone):
		return err
	case errors.Is(err, syscall.ENOSPC) || saysDiskFull(err.Error()):
		return &DiskFullError{Server: server, Dir: dir}
	case syscall.Statfs(dir, &stat) == nil && stat.Bavail < leastFreeBytes/uint64(stat.Bsize): //nolint:gosec // positive
		return &DiskFullError{Server: server, Dir: dir}
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
