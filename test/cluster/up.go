package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/test/sandbox"
)

const (
	apiPort      = "6443"
	apiURL       = "https://" + sandbox.Address + ":" + apiPort
	serviceCIDR  = "10.96.0.0/16"
	apiServiceIP = "10.96.0.1"
	podCIDR      = "10.244.0.0/16"
	nodeName     = "node"
	// upTimeout is for one part; on a machine that is busy with other tests each takes a minute.
	upTimeout = 5 * time.Minute
	// poll is the pause between two looks at something that gives no signal.
	poll = 50 * time.Millisecond
)

// Cluster is a whole cluster within a sandbox: control plane, one node that runs Pods, Services and their names. It
// ends with the sandbox.
type Cluster struct {
	// Config logs in as administrator; Kubeconfig is a file that does the same.
	Config     *rest.Config
	Kubeconfig string
	// Logs is the folder of the parts' logs.
	Logs string

	box    *sandbox.Box
	assets string
	pki    *authority
	lost   chan error
}

// Up starts a cluster in the sandbox and returns when its node is ready. Prepare was called outside before.
func Up(ctx context.Context, box *sandbox.Box) (*Cluster, error) {
	assets, err := Assets(ctx)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		Kubeconfig: filepath.Join(box.Dir, "admin.kubeconfig"), Logs: filepath.Join(box.Dir, "logs"),
		box: box, assets: assets, lost: make(chan error, 1),
	}
	for _, dir := range []string{c.Logs, c.path("etcd"), c.path("containerd"), c.path("kubelet"), c.path("cni")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make a folder: %w", err)
		}
	}
	if err := c.certify(); err != nil {
		return nil, err
	}
	for _, start := range []func(context.Context) error{c.startPlane, c.startRuntime, c.load, c.startNode} {
		if err := start(ctx); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Cluster) path(name string) string { return filepath.Join(c.box.Dir, name) }

// certify makes the certificates of everyone and the files they log in with.
func (c *Cluster) certify() (err error) {
	now := time.Now()
	if c.pki, err = newAuthority(c.path("pki"), now); err != nil {
		return err
	}
	address := net.ParseIP(sandbox.Address)
	for name, who := range map[string]identity{
		"apiserver": {
			user: "kube-apiserver", ips: []net.IP{address, net.ParseIP(apiServiceIP), net.IPv4(127, 0, 0, 1)},
			names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		},
		"admin":              {user: "admin", groups: []string{"system:masters"}},
		"apiserver-kubelet":  {user: "kube-apiserver-kubelet", groups: []string{"system:masters"}},
		"controller-manager": {user: "system:kube-controller-manager"},
		"scheduler":          {user: "system:kube-scheduler"},
		"proxy":              {user: "system:kube-proxy"},
		"kubelet": {
			user: "system:node:" + nodeName, groups: []string{"system:nodes"}, ips: []net.IP{address},
		},
	} {
		if err := c.pki.issue(name, who); err != nil {
			return err
		}
	}
	if _, err := c.pki.newKey("service-account"); err != nil {
		return err
	}
	for _, user := range []string{"admin", "controller-manager", "scheduler", "proxy", "kubelet"} {
		content := fmt.Sprintf(
			kubeconfig,
			apiURL,
			c.pki.file("ca.crt"),
			c.pki.file(user+".crt"),
			c.pki.file(user+".key"),
		)
		if err := os.WriteFile(c.path(user+".kubeconfig"), []byte(content), 0o600); err != nil {
			return fmt.Errorf("write a kubeconfig: %w", err)
		}
	}
	if c.Config, err = clientcmd.BuildConfigFromFlags("", c.Kubeconfig); err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	c.Config.QPS, c.Config.Burst = -1, 0 // tests are in a hurry
	return nil
}

// startPlane starts etcd, API server, controller manager, scheduler and the DNS.
func (c *Cluster) startPlane(ctx context.Context) error {
	for name, args := range c.planeArguments() {
		if err := c.start(name, filepath.Join(c.assets, name), args...); err != nil {
			return err
		}
	}
	if err := c.until(ctx, "the API server to be ready", c.apiReady); err != nil {
		return err
	}
	for name, args := range c.controllerArguments() {
		if err := c.start(name, filepath.Join(c.assets, name), args...); err != nil {
			return err
		}
	}
	reader, err := c.client()
	if err != nil {
		return err
	}
	return startDNS(ctx, sandbox.Address, reader)
}

func (c *Cluster) client() (client.Client, error) {
	ctrl.SetLogger(logr.Discard()) // a client wants one; its errors are returned
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("know the API's kinds: %w", err)
	}
	cl, err := client.New(c.Config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return cl, nil
}

func (c *Cluster) apiReady(ctx context.Context) error {
	out, err := c.Kubectl(ctx, "get", "--raw", "/readyz", "--request-timeout=5s").CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

// startRuntime starts containerd.
func (c *Cluster) startRuntime(ctx context.Context) error {
	config, err := c.containerdConfig()
	if err != nil {
		return err
	}
	for name, content := range map[string]string{
		"containerd.toml": config, "cni/10-bridge.conflist": bridgeConfig,
	} {
		if err := os.WriteFile(c.path(name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	if err := c.start("containerd", "containerd", "--config", c.path("containerd.toml")); err != nil {
		return err
	}
	return c.until(ctx, "containerd to be ready", func(ctx context.Context) error {
		return quietly(c.Ctr(ctx, "version"))
	})
}

// load imports the images.
func (c *Cluster) load(ctx context.Context) error {
	for name := range imagesIn("") {
		image, err := Binary(ctx, name+".tar")
		if err != nil {
			return err
		}
		if err := quietly(c.Ctr(ctx, "images", "import", image)); err != nil {
			return fmt.Errorf("import %s: %w", filepath.Base(image), err)
		}
	}
	return nil
}

// startNode starts kubelet and kube-proxy and waits until the node takes Pods.
func (c *Cluster) startNode(ctx context.Context) error {
	for name, content := range map[string]string{"kubelet": c.kubeletConfig(), "kube-proxy": c.proxyConfig()} {
		file := c.path(name + ".yaml")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return fmt.Errorf("write the configuration of %s: %w", name, err)
		}
		args := []string{"--config=" + file}
		if name == "kubelet" {
			args = append(args, "--kubeconfig="+c.path("kubelet.kubeconfig"), "--root-dir="+c.path("kubelet"),
				"--hostname-override="+nodeName, "--node-ip="+sandbox.Address, "--cert-dir="+c.path("pki"))
		}
		if err := c.start(name, filepath.Join(c.assets, name), args...); err != nil {
			return err
		}
	}
	reader, err := c.client()
	if err != nil {
		return err
	}
	return c.until(ctx, "the node to be ready", func(ctx context.Context) error {
		var node corev1.Node
		if err := reader.Get(ctx, client.ObjectKey{Name: nodeName}, &node); err != nil {
			return err
		}
		for _, condition := range node.Status.Conditions {
			if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %v", node.Status.Conditions)
	})
}

// start starts a part, which ends with the sandbox. If it ends before, until says so.
func (c *Cluster) start(name, program string, args ...string) error {
	log, err := os.Create(filepath.Join(c.Logs, name+".log"))
	if err != nil {
		return fmt.Errorf("open a log: %w", err)
	}
	cmd := exec.Command(program, args...) //nolint:noctx // it ends with the sandbox
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		err := cmd.Wait()
		select {
		case c.lost <- fmt.Errorf("%s ended: %v\n%s", name, err, tail(log)): //nolint:errorlint // it may be nil
		default: // the first is told
		}
	}()
	return nil
}

// tailBytes is how much of a log is shown of a part that ended.
const tailBytes = 2000

func tail(log *os.File) []byte {
	size, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return nil
	}
	from := max(0, size-tailBytes)
	last := make([]byte, size-from)
	n, _ := log.ReadAt(last, from)
	return last[:n]
}

// lastWords is the end of every log: the logs go with the sandbox.
func (c *Cluster) lastWords() string {
	var words strings.Builder
	files, _ := filepath.Glob(filepath.Join(c.Logs, "*.log")) // the pattern is well formed
	for _, file := range files {
		if log, err := os.Open(file); err == nil {
			fmt.Fprintf(&words, "%s ends with:\n%s\n", filepath.Base(file), tail(log))
			_ = log.Close() // it was read
		}
	}
	return words.String()
}

// until waits until check returns nothing. What it returned last is the failure.
func (c *Cluster) until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, upTimeout)
	defer cancel()
	tick := time.NewTicker(poll)
	defer tick.Stop()
	for {
		wrong := check(ctx)
		if wrong == nil {
			return nil
		}
		select {
		case err := <-c.lost:
			return fmt.Errorf("waiting for %s: %w", what, err)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w\n%s", what, context.Cause(ctx), wrong, c.lastWords())
		case <-tick.C:
		}
	}
}

// Kubectl returns a call of kubectl as administrator.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) *exec.Cmd {
	return kubectl(ctx, c.assets, c.Kubeconfig, args...)
}

// Ctr returns a call of containerd's own client.
func (c *Cluster) Ctr(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ctr", append([]string{"--namespace", "k8s.io"}, args...)...)
}

// quietly runs a command and tells what it said only if it fails.
func quietly(cmd *exec.Cmd) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}
