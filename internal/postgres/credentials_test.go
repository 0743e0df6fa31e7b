package postgres

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/config"
)

func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// remount lays files out as the kubelet does: ..data points at a version, names point through ..data.
func remount(t *testing.T, dir, version string, files map[string]string) {
	t.Helper()
	writeFiles(t, filepath.Join(dir, version), files)
	tmp := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(version, tmp); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
	for name := range files {
		if err := os.Symlink(filepath.Join("..data", name), filepath.Join(dir, name)); err != nil && !os.IsExist(err) {
			t.Fatal(err)
		}
	}
}

func TestReadMaterialFollowsTheMount(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cfg := config.Postgres{CredentialsDir: dir}

	remount(t, dir, "..v1", map[string]string{"username": "a", "password": "one"})
	m, err := readMaterial(cfg)
	if err != nil || m.username != "a" || m.password != "one" {
		t.Fatalf("readMaterial() = %q, %v, want a's", m.username, err)
	}
	remount(t, dir, "..v2", map[string]string{"username": "b", "password": "two"})
	if m, err = readMaterial(cfg); err != nil || m.username != "b" || m.password != "two" {
		t.Fatalf("readMaterial() after the switch = %q, %v, want b's", m.username, err)
	}
}

// A half-switched directory must not pair one version's user with another's password.
func TestReadMaterialReadsOneVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	remount(t, dir, "..v1", map[string]string{"username": "a", "password": "one"})
	// Someone replaced the outer name alone; the version that ..data names still decides.
	writeFiles(t, dir, map[string]string{"..other": "stray"})
	if err := os.Remove(filepath.Join(dir, "password")); err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, map[string]string{"password": "stray"})

	m, err := readMaterial(config.Postgres{CredentialsDir: dir})
	if err != nil || m.username != "a" || m.password != "one" {
		t.Errorf("readMaterial() = %q with the stray password: %t, %v", m.username, m.password == "stray", err)
	}
}

func TestReadMaterialNamesWhatIsWrong(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		files   map[string]string
		tls     config.TLS
		wantErr string // part of the message; empty: no error
	}{
		"a line end is not part of a password": {files: map[string]string{"username": "u\n", "password": "p\r\n"}},
		"a missing password file is named": {
			files:   map[string]string{"username": "u"},
			wantErr: "password does not exist",
		},
		"a missing username file is named": {
			files:   map[string]string{"password": "p"},
			wantErr: "username does not exist",
		},
		"an empty username is refused": {
			files:   map[string]string{"username": "\n", "password": "p"},
			wantErr: "username is empty",
		},
		"a file that is too large is refused": {
			files:   map[string]string{"username": "u", "password": strings.Repeat("x", 2<<20)},
			wantErr: "cannot be read",
		},
		"a missing CA file is named": {
			files:   map[string]string{"username": "u", "password": "p"},
			tls:     config.TLS{CAFile: "/nowhere/ca.crt"},
			wantErr: "/nowhere/ca.crt does not exist",
		},
		"a missing client certificate is named": {
			files:   map[string]string{"username": "u"},
			tls:     config.TLS{ClientCertificateDir: "/nowhere"},
			wantErr: "/nowhere/tls.crt does not exist",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			writeFiles(t, dir, tc.files)
			m, err := readMaterial(config.Postgres{CredentialsDir: dir, TLS: tc.tls})
			if tc.wantErr == "" {
				if err != nil || m.username != "u" || m.password != "p" {
					t.Errorf("readMaterial() = %q, %v", m.username, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.wantErr) {
				t.Fatalf("readMaterial() error = %v, want %q", err, tc.wantErr)
			}
			if _, reason, _ := Classify(err); reason != ReasonCredentialsInvalid {
				t.Errorf("reason = %s, want %s", reason, ReasonCredentialsInvalid)
			}
		})
	}
}

func TestReadMaterialNeedsNoPasswordWithAClientCertificate(t *testing.T) {
	t.Parallel()
	dir, certs := t.TempDir(), t.TempDir()
	writeFiles(t, dir, map[string]string{"username": "u"})
	writeFiles(t, certs, map[string]string{"tls.crt": "c", "tls.key": "k"})
	m, err := readMaterial(config.Postgres{CredentialsDir: dir, TLS: config.TLS{ClientCertificateDir: certs}})
	if err != nil || m.username != "u" || string(m.key) != "k" {
		t.Errorf("readMaterial() = %q, %v", m.username, err)
	}
}
