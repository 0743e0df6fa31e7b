package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

const (
	// PauseImage is what holds Pods' namespaces open.
	PauseImage = "localhost/postrider-pause:1"
	// OperatorImage is what the operator and its workers run: postrider:dev in full, as dist/install.yaml names it.
	OperatorImage = "docker.io/library/postrider:dev"

	// pluginsDir is where Debian puts the CNI plugins.
	pluginsDir = "/usr/lib/cni"
	// certificates is where the Dockerfile puts the authorities that are trusted, and where Debian has them.
	certificates = "etc/ssl/certs/ca-certificates.crt"
)

// ErrNeedsRoot says why Pods cannot run here.
var ErrNeedsRoot = errors.New("running Pods needs root on Linux; in a cluster of your own, the quick start " +
	"does without: KUBECONFIG=FILE make quickstart-cluster")

// Prepare makes ready, outside, what a cluster in a sandbox needs: the node's programs, which it installs where
// apt-get is there, the binaries of Kubernetes and the images.
func Prepare(ctx context.Context, out io.Writer) error {
	if err := Check(ctx, out); err != nil {
		return err
	}
	if _, err := Build(ctx, out); err != nil {
		return err
	}
	return buildImages(ctx, out)
}

// Check says before any work what Prepare could not do. It installs what is missing of the node's programs.
func Check(ctx context.Context, out io.Writer) error {
	if runtime.GOOS != "linux" || os.Geteuid() != 0 {
		return ErrNeedsRoot
	}
	if err := installPrograms(ctx, out); err != nil {
		return err
	}
	if _, err := Assets(ctx); !errors.Is(err, ErrNotBuilt) {
		return err
	}
	return roomFor(ctx)
}

// Binary returns where Prepare puts a binary of the image.
func Binary(ctx context.Context, name string) (string, error) {
	root, err := Root(ctx)
	if err != nil {
		return "", err
	}
	return filepath.Join(root, imageDir, name), nil
}

// imageDir is where the image's binaries and the images are, in the clone.
const imageDir = "bin/image"

// programs are what the node needs, by the Debian package that has them.
func programs() map[string]string {
	return map[string]string{
		"containerd":           "containerd",
		"runc":                 "runc",
		pluginsDir + "/bridge": "containernetworking-plugins",
		"nft":                  "nftables",
		"conntrack":            "conntrack",
		"iptables":             "iptables",
		"ip":                   "iproute2",
		"mount":                "mount",
	}
}

func installPrograms(ctx context.Context, out io.Writer) error {
	var missing []string
	for program, pkg := range programs() {
		if _, err := exec.LookPath(program); err != nil {
			missing = append(missing, pkg)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("running Pods needs these programs: install %v", missing)
	}
	fmt.Fprintf(out, "installing %v with apt-get\n", missing)
	for _, args := range [][]string{
		{"update"}, append([]string{"install", "--yes", "--no-install-recommends"}, missing...),
	} {
		cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet=2"}, args...)...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		if said, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, said)
		}
	}
	return nil
}

// buildImages builds what the Dockerfile builds, as it does, and the pause image.
func buildImages(ctx context.Context, out io.Writer) error {
	root, err := Root(ctx)
	if err != nil {
		return err
	}
	dir := filepath.Join(root, imageDir)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make a folder for binaries: %w", err)
	}
	unlock, err := lock(filepath.Join(dir, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	fmt.Fprintln(out, "building the image")
	args := []string{"build", "-trimpath", "-ldflags", "-s -w", "-o", dir + "/"}
	args = append(args, "./cmd/manager", "./cmd/relay", "./cmd/consumer", "./cmd/postrider", "./test/cluster/pause")
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if said, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build the image's binaries: %w: %s", err, bytes.TrimSpace(said))
	}
	for name, image := range imagesIn(dir) {
		file := filepath.Join(dir, name+".tar")
		if err := image.WriteFile(file + ".new"); err != nil {
			return err
		}
		if err := os.Rename(file+".new", file); err != nil {
			return fmt.Errorf("put an image in place: %w", err)
		}
	}
	return nil
}

func imagesIn(dir string) map[string]Image {
	operator := Image{
		Reference: OperatorImage, User: "65532:65532", Entrypoint: []string{"/usr/local/bin/postrider"},
		Files: make(map[string]string),
	}
	for _, name := range []string{"manager", "relay", "consumer", "postrider"} {
		operator.Files["usr/local/bin/"+name] = filepath.Join(dir, name)
	}
	if _, err := os.Stat("/" + certificates); err == nil {
		operator.Files[certificates] = "/" + certificates
	}
	return map[string]Image{
		"postrider": operator,
		"pause": {
			Reference: PauseImage, User: "65535:65535", Entrypoint: []string{"/pause"},
			Files: map[string]string{"pause": filepath.Join(dir, "pause")},
		},
	}
}
