// Command postgres starts the PostgreSQL of an image that has nothing else, with the superuser's password from
// POSTGRES_PASSWORD, as the official image does. Called as pg_isready it says whether the server takes connections.
package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

const (
	programs = "/postgres/programs"
	fresh    = "/postgres/data.tar" // what initdb has made
	data     = "/data"
	user     = 999 // the server refuses to run as root
	access   = "local all all trust\nhost all all all scram-sha-256\n"
	socket   = "-cunix_socket_directories=/data"
)

func main() {
	err := serve
	if strings.HasSuffix(os.Args[0], "pg_isready") {
		err = ready
	}
	if err := err(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ready() error {
	conn, err := net.Dial("tcp", "127.0.0.1:5432") //nolint:noctx // a probe has a timeout of its own
	if err != nil {
		return fmt.Errorf("look for the server: %w", err)
	}
	return conn.Close()
}

func serve() error {
	if err := unpack(); err != nil {
		return fmt.Errorf("unpack the fresh data: %w", err)
	}
	if err := os.WriteFile(filepath.Join(data, "pg_hba.conf"), []byte(access), 0o600); err != nil {
		return fmt.Errorf("write who may connect: %w", err)
	}
	if err := os.Chown(filepath.Join(data, "pg_hba.conf"), user, user); err != nil {
		return fmt.Errorf("hand the data over: %w", err)
	}
	if err := syscall.Setgid(user); err != nil {
		return fmt.Errorf("become the server's user: %w", err)
	}
	if err := syscall.Setuid(user); err != nil {
		return fmt.Errorf("become the server's user: %w", err)
	}
	server := filepath.Join(programs, "bin", "postgres")
	password := strings.ReplaceAll(os.Getenv("POSTGRES_PASSWORD"), "'", "''")
	alone := exec.Command(server, "--single", "-D", data, "postgres") //nolint:noctx // the container ends it
	alone.Stdin = strings.NewReader("ALTER ROLE postgres PASSWORD '" + password + "'\n")
	if said, err := alone.CombinedOutput(); err != nil {
		return fmt.Errorf("set the password: %w: %s", err, said)
	}

	return syscall.Exec(server, []string{server, "-D", data, "-clisten_addresses=*", socket}, os.Environ())
}

// unpack makes the data folder, as the server wants it: nobody else may look into it.
func unpack() error {
	packed, err := os.Open(fresh)
	if err != nil {
		return err
	}
	defer func() { _ = packed.Close() }() // it was read
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if err := os.Chown(data, user, user); err != nil {
		return err
	}
	for r := tar.NewReader(packed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		path := filepath.Join(data, filepath.Clean("/"+h.Name))
		if h.FileInfo().IsDir() {
			err = os.MkdirAll(path, 0o700)
		} else {
			err = write(path, r)
		}
		if err != nil {
			return err
		}
		if err := os.Chown(path, user, user); err != nil {
			return err
		}
	}
}

func write(path string, content io.Reader) (err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	_, err = io.Copy(out, content)
	return err
}
