package brokers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// canUnpack says whether this machine has Debian's packages.
func canUnpack() bool {
	for _, tool := range []string{"apt-get", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return false
		}
	}
	return true
}

// distribution names the system and the machine whose packages are unpacked: "debian-12-amd64".
func distribution() string {
	content, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "unknown-" + runtime.GOARCH
	}
	values := make(map[string]string)
	for line := range strings.Lines(string(content)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		values[name] = strings.Trim(value, `"`)
	}
	return values["ID"] + "-" + values["VERSION_ID"] + "-" + runtime.GOARCH
}

// unpack downloads packages with lists and caches of our own, as any user may, and unpacks them into dir.
func unpack(ctx context.Context, dir string, names []string) error {
	work := filepath.Join(dir, "fetch")
	packages := filepath.Join(work, "packages")
	for _, d := range []string{"lists/partial", "cache/archives/partial", "packages"} {
		if err := os.MkdirAll(filepath.Join(work, d), 0o700); err != nil {
			return fmt.Errorf("making a folder: %w", err)
		}
	}
	options := []string{
		"-q",
		"-o",
		"Dir::State::lists=" + filepath.Join(work, "lists"),
		"-o",
		"Dir::Cache=" + filepath.Join(work, "cache"),
		"-o",
		"APT::Sandbox::User=",
		"-o",
		"Acquire::Languages=none",
		"-o",
		"Acquire::Retries=3",
	}
	if err := retry(ctx, func(ctx context.Context) error {
		if err := command(ctx, packages, "apt-get", append(options, "update")...); err != nil {
			return err
		}
		return command(ctx, packages, "apt-get", append(append(options, "download"), names...)...)
	}); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(packages, "*.deb"))
	if err != nil || len(files) < len(names) {
		return fmt.Errorf("%d of %d packages were downloaded", len(files), len(names))
	}
	for _, file := range files {
		if err := command(ctx, dir, "dpkg-deb", "-x", file, dir); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(work); err != nil {
		return fmt.Errorf("removing the downloaded packages: %w", err)
	}
	return nil
}
