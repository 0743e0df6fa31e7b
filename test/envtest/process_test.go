//go:build kubernetes

package envtest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/cluster"
)

// process is a manager in a process of its own.
type process struct {
	cmd             *exec.Cmd
	metrics, health int
	ended           chan struct{}

	mu  sync.Mutex
	log bytes.Buffer
}

// Write implements io.Writer.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

func startManager(t testing.TB, binary, kubeconfig string, flags ...string) *process {
	t.Helper()
	p := &process{ended: make(chan struct{})}
	for _, port := range []*int{&p.metrics, &p.health} {
		n, err := freePort(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		*port = n
	}
	p.cmd = exec.Command(binary, append(flags, "--kubeconfig="+kubeconfig, "--worker-image="+image,
		"--leader-election-namespace=default", "--metrics-listen=127.0.0.1:"+strconv.Itoa(p.metrics),
		"--health-listen=127.0.0.1:"+strconv.Itoa(p.health))...)
	p.cmd.Stderr = p
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its exit code is read from its state
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("manager %d said:\n%s", p.cmd.Process.Pid, p.logged())
		}
	})
	return p
}

func buildManager(t testing.TB) string {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "manager")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", binary, "../../cmd/manager")
	cmd.Env = append(cmd.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return binary
}

// answerOf asks an endpoint.
func answerOf(ctx context.Context, url string) (int, string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return 0, err.Error()
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(body)
}

// own starts a control plane for one test, without the operator of the others. end ends it early.
func own(t testing.TB) (b *bed, end func()) {
	t.Helper()
	plane, err := cluster.Start(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		if err := plane.Stop(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(end)
	b = &bed{plane: plane, sent: &requests{}}
	if b.admin, err = newAdmin(plane); err != nil {
		t.Fatal(err)
	}
	return b, end
}

// spaceIn makes a namespace on a plane.
func spaceIn(t testing.TB, b *bed, name string) *space {
	t.Helper()
	if err := b.admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		t.Fatal(err)
	}
	return &space{bed: b, t: t, name: name}
}

func (s *space) deployed(within time.Duration) time.Duration {
	s.t.Helper()
	since := time.Now()
	eventually(s.t, "a Deployment in "+s.name, func() string {
		if !s.get("orders-relay", &appsv1.Deployment{}) {
			return "none"
		}
		return ""
	})
	took := time.Since(since)
	if took > within {
		s.t.Errorf("it took %s, want at most %s", took, within)
	}
	return took
}

// Two managers: one works, the other waits; the one that ends hands over at once.
func TestTheLeaderHandsOver(t *testing.T) {
	t.Parallel()
	binary := buildManager(t)
	b, _ := own(t)
	first, second, third := spaceIn(t, b, "first"), spaceIn(t, b, "second"), spaceIn(t, b, "third")

	leader := startManager(t, binary, b.plane.Kubeconfig, "--namespaces=first,second")
	first.makeRelay(nil)
	third.makeRelay(nil) // looked after by nobody
	first.deployed(patience)
	standby := startManager(t, binary, b.plane.Kubeconfig, "--namespaces=first,second")
	eventually(t, "the standby to be ready", func() string {
		if code, body := answerOf(
			t.Context(),
			fmt.Sprintf("http://127.0.0.1:%d/readyz", standby.health),
		); code != http.StatusOK {
			return body
		}
		return ""
	})
	if code, body := answerOf(
		t.Context(),
		fmt.Sprintf("https://127.0.0.1:%d/metrics", leader.metrics),
	); code != http.StatusUnauthorized {
		t.Errorf("metrics without a token: %d %.200s, want them refused", code, body)
	}

	if err := leader.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-leader.ended
	if code := leader.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("the leader ended with %d", code)
	}
	second.makeRelay(nil)
	took := second.deployed(10 * time.Second) // a lease that is not released lasts 15 s
	t.Logf("handed over in %s", took)
	var lease coordinationv1.Lease
	key := client.ObjectKey{Namespace: "default", Name: "manager.postrider.dev"}
	if err := b.admin.Get(t.Context(), key, &lease); err != nil || *lease.Spec.LeaseTransitions < 1 {
		t.Errorf("lease = %+v, %v, want it to have changed hands", lease.Spec, err)
	}
	if third.get("orders-relay", &appsv1.Deployment{}) {
		t.Error("a namespace that is not named was looked after")
	}
	for _, p := range []*process{leader, standby} {
		lines := bufio.NewScanner(strings.NewReader(p.logged()))
		for lines.Scan() {
			if !json.Valid(lines.Bytes()) {
				t.Errorf("a line of the log is no JSON: %s", lines.Text())
			}
		}
	}
	relay := &v1alpha1.OutboxRelay{}
	if first.get("orders", relay); relay.Status.ObservedGeneration != 1 {
		t.Errorf("status = %+v, want it reported", relay.Status)
	}
}
