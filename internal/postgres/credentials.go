package postgres

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/postrider/postrider/internal/config"
)

// maxSecretFileBytes bounds what is read of a mounted file.
const maxSecretFileBytes = 1 << 20

// maxMountReads is how often a mount is read again that was switched to another version meanwhile.
const maxMountReads = 3

// material is what a connection needs from files, all read at one time.
type material struct {
	username, password string
	ca, cert, key      []byte
}

// readMaterial reads the files that the settings name. Its errors name files, never what is in them.
func readMaterial(cfg config.Postgres) (material, error) {
	var m material
	optional := "password"
	if cfg.TLS.ClientCertificateDir == "" {
		optional = ""
	}
	files, err := readMount(cfg.CredentialsDir, []string{"username", "password"}, optional)
	if err != nil {
		return m, err
	}
	m.username, m.password = trimLine(files["username"]), trimLine(files["password"])
	if m.username == "" {
		return m, credentialsError(filepath.Join(cfg.CredentialsDir, "username"), "is empty", nil)
	}
	if cfg.TLS.ClientCertificateDir != "" {
		files, err := readMount(cfg.TLS.ClientCertificateDir, []string{"tls.crt", "tls.key"}, "")
		if err != nil {
			return m, err
		}
		m.cert, m.key = files["tls.crt"], files["tls.key"]
	}
	if cfg.TLS.CAFile != "" {
		if m.ca, err = readFile(cfg.TLS.CAFile); err != nil {
			return m, fileError(cfg.TLS.CAFile, err)
		}
	}
	return m, nil
}

// readMount reads files that belong together from a mounted directory. The kubelet switches the link ..data
// from one version to the next: it is resolved once, so that a username is never paired with a newer password.
func readMount(dir string, names []string, optional string) (map[string][]byte, error) {
	var err error
	for range maxMountReads {
		at := dir
		if resolved, linkErr := filepath.EvalSymlinks(filepath.Join(dir, "..data")); linkErr == nil {
			at = resolved
		}
		var files map[string][]byte
		if files, err = readDir(at, dir, names, optional); err == nil {
			return files, nil
		}
		if at == dir {
			break // not a mount that is switched: reading again shows the same
		}
	}
	return nil, err
}

func readDir(at, shown string, names []string, optional string) (map[string][]byte, error) {
	files := make(map[string][]byte, len(names))
	for _, name := range names {
		b, err := readFile(filepath.Join(at, name))
		if errors.Is(err, fs.ErrNotExist) && name == optional {
			continue
		}
		if err != nil {
			return nil, fileError(filepath.Join(shown, name), err)
		}
		files[name] = b
	}
	return files, nil
}

func readFile(name string) ([]byte, error) {
	f, err := os.Open(filepath.Clean(name))
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // nothing was written
	b, err := io.ReadAll(io.LimitReader(f, maxSecretFileBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxSecretFileBytes {
		return nil, errors.New("larger than 1 MiB")
	}
	return b, nil
}

// trimLine takes off the line end that an editor or echo leaves.
func trimLine(b []byte) string {
	b = bytes.TrimSuffix(b, []byte("\n"))
	return string(bytes.TrimSuffix(b, []byte("\r")))
}

func fileError(name string, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return credentialsError(name, "does not exist: is the Secret there, with this key?", err)
	case errors.Is(err, fs.ErrPermission):
		return credentialsError(name, "cannot be read: permission denied", err)
	default:
		return credentialsError(name, "cannot be read", err)
	}
}

func credentialsError(name, what string, err error) error {
	return &Error{Reason: ReasonCredentialsInvalid, Message: fmt.Sprintf("file %s %s", name, what), Err: err}
}
