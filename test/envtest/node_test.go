//go:build kubernetes

package envtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/internal/desired"
)

const (
	// nodePeriod is how often the node looks at its Pods.
	nodePeriod = 200 * time.Millisecond
	// maxMisses is how many probes in a row a Pod that was ready may miss.
	maxMisses = 5
	// graceful is how long a process has to end after SIGTERM.
	graceful = 20 * time.Second
)

// node plays the kubelet of one namespace as far as workers need it, and what it runs is real: the commands that the
// containers name, one after the other as processes, with their volumes as files that follow the objects.
// While the API server is away it goes on with what it knows, as a kubelet does.
type node struct {
	space *space
	bin   string // where the commands are
	dir   string // one folder a Pod
	known []corev1.Pod

	mu   sync.Mutex // of the runs, between rounds
	runs map[types.UID]*podRun
}

// podRun is a Pod that runs: its steps first, then its worker.
type podRun struct {
	pod        corev1.Pod
	dir, ip    string
	containers []corev1.Container
	steps      int // how many of the containers come before the worker
	at         int // which one runs
	restarts   int32
	misses     int
	told       string // the state that the API server knows
	cmd        *exec.Cmd
	ended      chan struct{}
	log        *output
}

// output is what a process prints, shown where the test fails.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String is all that was printed.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// buildCommands builds what the image holds.
func buildCommands(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", dir+"/",
		"./cmd/relay", "./cmd/consumer", "./cmd/postrider")
	cmd.Dir = "../.."
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building the commands: %v\n%s", err, out)
	}
	return dir
}

// runNode runs the Pods of the space until the test ends.
func (s *space) runNode(bin string) *node {
	s.t.Helper()
	n := &node{space: s, bin: bin, dir: s.t.TempDir(), runs: make(map[types.UID]*podRun)}
	ctx, cancel := context.WithCancel(context.Background()) // outlives the test's context, for the clean-up
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(nodePeriod)
		defer tick.Stop()
		for ctx.Err() == nil {
			n.round(ctx)
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
		}
	}()
	s.t.Cleanup(func() {
		cancel()
		<-done
		for _, r := range n.runs {
			r.signal(syscall.SIGKILL)
			if s.t.Failed() {
				s.t.Logf("Pod %s printed:\n%s", r.pod.Name, tail(r.log.String()))
			}
		}
	})
	return n
}

func tail(s string) string {
	const most = 8 << 10
	return s[max(0, len(s)-most):]
}

// kill ends every process at once. The node starts them again.
func (n *node) kill(s syscall.Signal) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.runs {
		r.signal(s)
	}
}

// round brings what runs in line with the Pods.
func (n *node) round(ctx context.Context) {
	var pods corev1.PodList
	if err := n.space.admin.List(ctx, &pods, client.InNamespace(n.space.name)); err == nil {
		n.known = pods.Items
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.known {
		pod := &n.known[i]
		r := n.runs[pod.UID]
		switch {
		case r == nil && pod.DeletionTimestamp.IsZero():
			n.runs[pod.UID] = n.admit(pod)
		case r != nil && !pod.DeletionTimestamp.IsZero():
			r.signal(syscall.SIGTERM)
			delete(n.runs, pod.UID)
			_ = n.space.admin.Delete(ctx, pod, client.GracePeriodSeconds(0)) // gone already: as well
		case r == nil:
			_ = n.space.admin.Delete(ctx, pod, client.GracePeriodSeconds(0)) // it never ran
		default:
			n.tend(ctx, r)
		}
	}
}

func (n *node) admit(pod *corev1.Pod) *podRun {
	number := addresses.Add(1) + 1
	return &podRun{
		pod: *pod, dir: filepath.Join(n.dir, pod.Name), ip: net.IPv4(127, 1, byte(number>>8), byte(number)).String(),
		containers: append(append([]corev1.Container(nil), pod.Spec.InitContainers...), pod.Spec.Containers...),
		steps:      len(pod.Spec.InitContainers), log: &output{}, misses: maxMisses,
	}
}

// tend starts what should run, looks whether it is ready and tells the API server.
func (n *node) tend(ctx context.Context, r *podRun) {
	n.mount(ctx, r)
	if r.cmd != nil {
		select {
		case <-r.ended:
			if r.cmd.ProcessState.ExitCode() == 0 && r.at < r.steps {
				r.at++
			} else {
				r.restarts++
			}
			r.cmd, r.misses = nil, maxMisses
		default:
		}
	}
	if r.cmd == nil {
		if err := n.start(r); err != nil {
			fmt.Fprintf(r.log, "the node cannot start it: %v\n", err)
			return
		}
	}
	ready := r.at == r.steps && r.probe(ctx)
	if state := fmt.Sprint(r.at, ready, r.restarts); state != r.told {
		if err := n.tell(ctx, r, ready); err == nil {
			r.told = state
		}
	}
}

// probe says whether the worker is ready, or was so a moment ago: on a busy machine an answer may be late.
func (r *podRun) probe(ctx context.Context) bool {
	if code, _ := answerOf(ctx, "http://"+r.address()+"/readyz"); code == http.StatusOK {
		r.misses = 0
	} else if r.misses < maxMisses {
		r.misses++
	}
	return r.misses < maxMisses
}

func (r *podRun) address() string { return net.JoinHostPort(r.ip, strconv.Itoa(workerPort)) }

// start runs the container's command on the Pod's own address.
func (n *node) start(r *podRun) error {
	c := r.containers[r.at]
	var args []string
	for _, arg := range c.Args {
		if strings.HasPrefix(arg, "--listen=") {
			arg = "--listen=" + r.address()
		}
		args = append(args, strings.ReplaceAll(arg, desired.Root, r.dir))
	}
	cmd := exec.Command(filepath.Join(n.bin, filepath.Base(c.Command[0])), append(args, "--allow-loopback")...)
	cmd.Stdout, cmd.Stderr = r.log, r.log
	dieWithParent(cmd)
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd, r.ended = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // its state tells
		close(r.ended)
	}()
	return nil
}

// signal ends the process and waits for it.
func (r *podRun) signal(s syscall.Signal) {
	if r.cmd == nil {
		return
	}
	_ = r.cmd.Process.Signal(s) // it may have ended
	timer := time.NewTimer(graceful)
	defer timer.Stop()
	select {
	case <-r.ended:
	case <-timer.C:
		_ = r.cmd.Process.Kill()
		<-r.ended
	}
}

// mount writes the volumes' files. What the API server does not tell stays as it was.
func (n *node) mount(ctx context.Context, r *podRun) {
	for i := range r.pod.Spec.Volumes {
		v := &r.pod.Spec.Volumes[i]
		items, data, err := n.content(ctx, v)
		if err != nil {
			continue
		}
		for _, c := range r.containers {
			for _, m := range c.VolumeMounts {
				if m.Name == v.Name {
					r.write(filepath.Join(r.dir, strings.TrimPrefix(m.MountPath, desired.Root)), items, data)
				}
			}
		}
	}
}

// content is what a volume holds; a missing object is empty.
func (n *node) content(ctx context.Context, v *corev1.Volume) ([]corev1.KeyToPath, map[string][]byte, error) {
	key := client.ObjectKey{Namespace: n.space.name}
	switch {
	case v.Secret != nil:
		key.Name = v.Secret.SecretName
		var secret corev1.Secret
		err := client.IgnoreNotFound(n.space.admin.Get(ctx, key, &secret))
		return v.Secret.Items, secret.Data, err
	case v.ConfigMap != nil:
		key.Name = v.ConfigMap.Name
		var file corev1.ConfigMap
		err := client.IgnoreNotFound(n.space.admin.Get(ctx, key, &file))
		data := make(map[string][]byte)
		for name, text := range file.Data {
			data[name] = []byte(text)
		}
		return v.ConfigMap.Items, data, err
	default:
		return nil, nil, errors.New("no such volume is made for a worker")
	}
}

// write brings the files of a folder in line with a volume, each at once. Paths below the root are the folder's.
func (r *podRun) write(dir string, items []corev1.KeyToPath, data map[string][]byte) {
	_ = os.MkdirAll(dir, 0o700) // the write below tells
	for _, item := range items {
		path := filepath.Join(dir, item.Path)
		content, there := data[item.Key]
		if !there {
			_ = os.Remove(path) // it may never have been there
			continue
		}
		content = bytes.ReplaceAll(content, []byte(`"`+desired.Root+`/`), []byte(`"`+r.dir+`/`))
		if now, err := os.ReadFile(path); err == nil && bytes.Equal(now, content) {
			continue
		}
		if err := errors.Join(os.WriteFile(path+".next", content, 0o600), os.Rename(path+".next", path)); err != nil {
			fmt.Fprintf(r.log, "the node cannot write a file: %v\n", err)
		}
	}
}

// tell reports the Pod's state as a kubelet does.
func (n *node) tell(ctx context.Context, r *podRun, ready bool) error {
	now := metav1.Now()
	before := r.pod.DeepCopy()
	status := &r.pod.Status
	status.Phase, status.PodIP, status.PodIPs = corev1.PodRunning, r.ip, []corev1.PodIP{{IP: r.ip}}
	if r.at < r.steps {
		status.Phase = corev1.PodPending
	}
	if status.StartTime == nil {
		status.StartTime = &now
	}
	truth := corev1.ConditionFalse
	if ready {
		truth = corev1.ConditionTrue
	}
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: truth, LastTransitionTime: now}}
	status.InitContainerStatuses, status.ContainerStatuses = nil, nil
	for i, c := range r.containers {
		s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, ImageID: c.Image, RestartCount: r.restarts}
		switch {
		case i == r.at:
			s.State.Running, s.Ready = &corev1.ContainerStateRunning{StartedAt: now}, ready
		case i < r.at:
			s.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", FinishedAt: now}
		default:
			s.State.Waiting = &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
		}
		if i < r.steps {
			status.InitContainerStatuses = append(status.InitContainerStatuses, s)
		} else {
			status.ContainerStatuses = append(status.ContainerStatuses, s)
		}
	}
	err := n.space.admin.Status().Patch(ctx, &r.pod, client.MergeFrom(before))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
