// Package local runs resources on one machine, with servers of its own: an embedded PostgreSQL and an embedded NATS
// stand in for the ones that the resources name. The servers are real, listen on loopback alone, keep what they fetched
// in one cache, and end with this process, however that ends.
package local

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/postrider/postrider/internal/local/keeper"
)

// loopback is the address every embedded server listens on: nothing of them is reachable from another machine.
const loopback = "127.0.0.1"

// unprivileged is the account PostgreSQL runs as when we are root, which it refuses: "nobody" on most systems.
const unprivileged = 65534

// serverAccount is the account PostgreSQL must run as, nil for the own one.
func serverAccount() *keeper.User {
	if os.Geteuid() != 0 {
		return nil
	}
	return &keeper.User{UID: unprivileged, GID: unprivileged}
}

// copyOwnExecutable puts the running executable where another account can start it, and returns its path.
func copyOwnExecutable(dir string) (string, error) {
	own, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding the own executable: %w", err)
	}
	path := filepath.Join(dir, "keeper")
	if err := copyFile(own, path, 0o700); err != nil {
		return "", fmt.Errorf("copying the own executable: %w", err)
	}
	return path, nil
}

// chownTree gives a folder and what is in it to an account.
func chownTree(dir string, to keeper.User) error {
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(to.UID), int(to.GID)) //nolint:gosec // only we and that account get there
	})
	if err != nil {
		return fmt.Errorf("giving %s to the account PostgreSQL runs as: %w", dir, err)
	}
	return nil
}

// checkReachable tells whether the account the server runs as can get to the folder, which only its own files need.
func checkReachable(dir string, account *keeper.User) error {
	if account == nil {
		return nil
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("finding the folder of PostgreSQL: %w", err)
	}
	for parent := filepath.Dir(dir); ; parent = filepath.Dir(parent) {
		info, err := os.Stat(parent)
		if err != nil {
			return fmt.Errorf("looking at %s: %w", parent, err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return &FolderError{Dir: parent}
		}
		if parent == filepath.Dir(parent) {
			return nil
		}
	}
}

// freePort returns a port nothing listens on now. Another process may take it before the server does.
func freePort() (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, "0")) //nolint:noctx // returns at once
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	address, ok := l.Addr().(*net.TCPAddr)
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	if !ok {
		return 0, errors.New("finding a free port: not a TCP address")
	}
	return address.Port, nil
}

// checkPort tells early, and clearly, that a wanted port is taken.
func checkPort(server string, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort(loopback, strconv.Itoa(port))) //nolint:noctx // returns at once
	if errors.Is(err, syscall.EADDRINUSE) {
		return &PortInUseError{Server: server, Port: port}
	}
	if err != nil {
		return fmt.Errorf("trying port %d for %s: %w", port, server, err)
	}
	if err := l.Close(); err != nil {
		return fmt.Errorf("trying port %d for %s: %w", port, server, err)
	}
	return nil
}
