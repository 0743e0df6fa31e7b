package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/postrider/postrider/internal/local/keeper"
)

// lockPollInterval is how often a process looks whether another has finished filling the cache.
const lockPollInterval = 50 * time.Millisecond

// postgresInstall is an unpacked PostgreSQL in the cache. It is complete: it appears under its name by a rename.
type postgresInstall struct {
	dir string
}

// programs holds bin, lib and share.
func (i postgresInstall) programs() string { return filepath.Join(i.dir, "programs") }

// data is a fresh data folder, shut down cleanly, to be copied: that takes a tenth of initdb's time.
func (i postgresInstall) data() string { return filepath.Join(i.dir, "data") }

// password holds the password of the superuser in data. It is random, and only the cache's owner can read it, so a
// server that starts from a copy is never open to a password that others know.
func (i postgresInstall) password() string { return filepath.Join(i.dir, "password") }

// CacheDir is the one folder that holds what was fetched: ${XDG_CACHE_HOME:-~/.cache}/postrider.
func CacheDir() (string, error) {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("finding the cache folder: %w; set XDG_CACHE_HOME to a folder you can write", err)
		}
		base = filepath.Join(home, ".cache")
	}
	return filepath.Join(base, "postrider"), nil
}

// cache is the folder that holds what was fetched.
type cache struct {
	dir string
	// prepare puts an unpacked PostgreSQL and fresh data below a folder.
	prepare func(ctx context.Context, version string, made postgresInstall, password string, lock *os.File) error
}

// openCache returns the cache in dir, or the one of the user.
func openCache(dir string) (cache, error) {
	if dir == "" {
		var err error
		if dir, err = CacheDir(); err != nil {
			return cache{}, err
		}
	}
	return cache{dir: dir, prepare: runPreparation}, nil
}

// postgres returns PostgreSQL from the cache and fetches it first if it is not there.
// Only one process of many that start at the same time fetches; the others wait for it.
func (c cache) postgres(ctx context.Context, version string) (postgresInstall, error) {
	name := fmt.Sprintf("postgres-%s-%s-%s", version, runtime.GOOS, runtime.GOARCH)
	dir, err := c.folder(ctx, name, func(ctx context.Context, dir string, lock *os.File) error {
		password := rand.Text()
		partial := postgresInstall{dir: dir}
		if err := c.prepareIn(ctx, version, partial, password, lock); err != nil {
			return err
		}
		if err := os.WriteFile(partial.password(), []byte(password), 0o600); err != nil {
			return fmt.Errorf("writing the superuser's password: %w", err)
		}
		return nil
	})
	return postgresInstall{dir: dir}, cacheError(c.dir, err)
}

// Cached returns the folder of that name in the cache. Where it is not there, fill makes it in another place first, from
// which it is moved when it is complete; of many processes that start at the same time one fills, and the others wait.
// The name holds the version of what it is.
func Cached(ctx context.Context, name string, fill func(ctx context.Context, dir string) error) (string, error) {
	c, err := openCache("")
	if err != nil {
		return "", err
	}
	dir, err := c.folder(ctx, name, func(ctx context.Context, dir string, _ *os.File) error { return fill(ctx, dir) })
	return dir, cacheError(c.dir, err)
}

// folder is Cached; fill is also given the lock that keeps others away.
func (c cache) folder(
	ctx context.Context, name string, fill func(ctx context.Context, dir string, lock *os.File) error,
) (string, error) {
	dir := filepath.Join(c.dir, name)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := os.MkdirAll(c.dir, 0o700); err != nil {
		return "", fmt.Errorf("making the cache folder: %w", err)
	}
	lock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close() //nolint:errcheck // closing gives the lock back; nothing was written
	if _, err := os.Stat(dir); err == nil {
		return dir, nil // another process was first
	}
	partial := dir + ".partial"
	if err := os.RemoveAll(partial); err != nil { // what a killed process left
		return "", fmt.Errorf("removing an unfinished download: %w", err)
	}
	if err := os.Mkdir(partial, 0o700); err != nil {
		return "", fmt.Errorf("making a folder in the cache: %w", err)
	}
	defer os.RemoveAll(partial) //nolint:errcheck // gone after a success; the next start removes it otherwise
	if err := fill(ctx, partial, lock); err != nil {
		return "", err
	}
	if err := os.Rename(partial, dir); err != nil {
		return "", fmt.Errorf("putting %s in its place: %w", name, err)
	}
	return dir, nil
}

// prepareIn does the work in the cache itself, unless PostgreSQL has to run as another user, who cannot get there.
func (c cache) prepareIn(
	ctx context.Context, version string, into postgresInstall, password string, lock *os.File,
) error {
	if serverAccount() == nil {
		return prepareError(version, into.dir, c.prepare(ctx, version, into, password, lock))
	}
	work, err := os.MkdirTemp("", "postrider-fetch-")
	if err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	defer os.RemoveAll(work) //nolint:errcheck // in the temporary folder
	made := postgresInstall{dir: work}
	if err := c.prepare(ctx, version, made, password, lock); err != nil {
		return prepareError(version, filepath.Dir(work), err)
	}
	return errors.Join(
		copyTree(made.programs(), into.programs(), nil, false),
		copyTree(made.data(), into.data(), nil, false),
	)
}

// runPreparation has a child fetch, unpack and initialise PostgreSQL below made, and removes the child's leftovers.
func runPreparation(
	ctx context.Context, version string, made postgresInstall, password string, lock *os.File,
) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	scratch := filepath.Join(made.dir, "scratch")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return fmt.Errorf("making a folder: %w", err)
	}
	account, executable := serverAccount(), ""
	if account != nil {
		if executable, err = copyOwnExecutable(scratch); err != nil {
			return err
		}
		if err := chownTree(made.dir, *account); err != nil {
			return err
		}
	}
	if err := keeper.Prepare(ctx, keeper.Preparation{
		Version:    version,
		Binaries:   made.programs(),
		Data:       made.data(),
		Scratch:    scratch,
		Port:       uint32(port), //nolint:gosec // a port fits
		Password:   password,
		RunAs:      account,
		Executable: executable,
	}, lock); err != nil {
		return err
	}
	if err := os.RemoveAll(scratch); err != nil {
		return fmt.Errorf("removing the downloaded archive: %w", err)
	}
	return nil
}

// lockFile takes an exclusive lock that ends with the process.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600) //nolint:gosec // in our own cache
	if err != nil {
		return nil, fmt.Errorf("opening the lock: %w", err)
	}
	poll := time.NewTicker(lockPollInterval)
	defer poll.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("locking %s: %w", path, err), f.Close())
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			return nil, errors.Join(
				fmt.Errorf("waiting for another process that fills the cache: %w", context.Cause(ctx)), f.Close())
		}
	}
}

// copyTree copies folders, files and symbolic links. Static libraries are left out: no server reads them.
// What is copied gets the owner, nil for the own account. With link set, a file that everyone may read is linked
// instead where both places are in one file system; it stays its owner's.
func copyTree(from, to string, owner *keeper.User, link bool) error {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".a") {
			return nil
		}
		target := filepath.Join(to, strings.TrimPrefix(path, from))
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir():
			err = os.Mkdir(target, info.Mode().Perm())
		case info.Mode()&fs.ModeSymlink != 0:
			err = copySymlink(path, target)
		case link && info.Mode().Perm()&0o004 != 0 && os.Link(path, target) == nil: //nolint:gosec // from our own cache
			return nil
		default:
			err = copyFile(path, target, info.Mode().Perm())
		}
		if err == nil && owner != nil {
			err = os.Lchown(target, int(owner.UID), int(owner.GID))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("copying %s: %w", from, err)
	}
	return nil
}

func copySymlink(from, to string) error {
	target, err := os.Readlink(from)
	if err != nil {
		return err
	}
	return os.Symlink(target, to)
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from) //nolint:gosec // the callers name their own
	if err != nil {
		return err
	}
	defer in.Close()                                                     //nolint:errcheck // only read
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode) //nolint:gosec // as above
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
