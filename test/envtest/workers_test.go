//go:build kubernetes

package envtest

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/statusz"
)

// freePort returns a port that nobody listens on.
func freePort(ctx context.Context) (int, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("find a port: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// addresses numbers the Pods: all of 127.0.0.0/8 is this machine.
var addresses atomic.Uint32

// workers play the kubelet and the workers of one namespace: every Pod gets an address and runs at once, and answers
// /statusz as a worker does that has read the ConfigMap of its resource.
type workers struct {
	space *space
	port  int

	mu      sync.Mutex
	change  func(pod string, r *statusz.Report) // what is not well
	silent  map[string]bool
	asked   map[string]int
	servers map[types.UID]*http.Server
}

func (s *space) runWorkers() *workers { return s.runWorkersAt(workerPort) }

// runWorkersAt runs workers that answer at another port.
func (s *space) runWorkersAt(port int) *workers {
	s.t.Helper()
	w := &workers{
		space:   s,
		port:    port,
		silent:  make(map[string]bool),
		asked:   make(map[string]int),
		servers: make(map[types.UID]*http.Server),
	}
	ctx, cancel := context.WithCancel(context.Background()) // outlives the test's context, for the clean-up
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		<-done
		for _, server := range w.servers {
			_ = server.Close()
		}
	})
	return w
}

func (w *workers) run(ctx context.Context) {
	tick := time.NewTicker(step)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		var pods corev1.PodList
		if err := w.space.admin.List(ctx, &pods, client.InNamespace(w.space.name)); err != nil {
			continue // the next tick tries again; a test that waits in vain fails
		}
		for i := range pods.Items {
			if pod := &pods.Items[i]; pod.Status.PodIP == "" && pod.DeletionTimestamp.IsZero() {
				_ = w.startPod(ctx, pod)
			}
		}
	}
}

// startPod gives a Pod an address and makes it ready.
func (w *workers) startPod(ctx context.Context, pod *corev1.Pod) error {
	n := addresses.Add(1) + 1
	ip := net.IPv4(127, 1, byte(n>>8), byte(n)).String()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(ip, strconv.Itoa(w.port)))
	if err != nil {
		return err
	}
	server := &http.Server{Handler: w.answers(pod.DeepCopy()), ReadHeaderTimeout: time.Second}
	w.mu.Lock()
	w.servers[pod.UID] = server
	w.mu.Unlock()
	go func() { _ = server.Serve(l) }() // until it is closed
	before := pod.DeepCopy()
	now := metav1.Now()
	pod.Status.Phase, pod.Status.PodIP, pod.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
	pod.Status.StartTime = &now
	pod.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
	}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: "worker", Ready: true, Image: image, ImageID: image,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
	}}
	return w.space.admin.Status().Patch(ctx, pod, client.MergeFrom(before))
}

func (w *workers) answers(pod *corev1.Pod) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		w.mu.Lock()
		w.asked[pod.Name]++
		silent, change := w.silent[pod.Name], w.change
		w.mu.Unlock()
		if silent {
			http.Error(rw, "not now", http.StatusServiceUnavailable)
			return
		}
		report, err := w.report(r.Context(), pod)
		if err != nil {
			http.Error(rw, err.Error(), http.StatusInternalServerError)
			return
		}
		if change != nil {
			change(pod.Name, report)
		}
		_ = json.NewEncoder(rw).Encode(report)
	}
}

// report is that of a worker with whom all is well and nothing to do, of the config in the ConfigMap.
func (w *workers) report(ctx context.Context, pod *corev1.Pod) (*statusz.Report, error) {
	var file corev1.ConfigMap
	key := client.ObjectKey{Namespace: pod.Namespace, Name: pod.Spec.ServiceAccountName}
	if err := w.space.admin.Get(ctx, key, &file); err != nil {
		return nil, err
	}
	raw := []byte(file.Data[desired.ConfigFile])
	zero, now := int64(0), time.Now()
	r := &statusz.Report{
		Version:      statusz.Version,
		Worker:       string(pod.UID),
		Namespace:    pod.Namespace,
		ObservedTime: &now,
	}
	good := func(kinds ...string) {
		for _, kind := range kinds {
			r.Conditions = append(r.Conditions, statusz.Condition{Type: kind, Status: "True", Reason: "Reachable"})
		}
	}
	if pod.Labels[desired.LabelRelay] != "" {
		cfg, err := config.ParseRelay(raw)
		if err != nil {
			return nil, err
		}
		r.Name, r.Generation, r.RunPolicy = cfg.Resource.Name, cfg.Resource.Generation, cfg.RunPolicy
		good(v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionSchemaReady, v1alpha1.ConditionBrokerReachable)
		r.Relay = &statusz.Relay{
			Shards: int(
				cfg.Outbox.Shards,
			),
			HeldShards:      []int16{0, 1, 2, 3, 4, 5, 6, 7},
			Destination:     "nats/" + cfg.NATS.Subject,
			Backlog:         &statusz.Backlog{Precision: "Exact"},
			DeadLetters:     &statusz.Count{},
			PublishedPerSec: &zero,
		}
		return r, nil
	}
	cfg, err := config.ParseConsumer(raw)
	if err != nil {
		return nil, err
	}
	r.Name, r.Generation, r.RunPolicy = cfg.Resource.Name, cfg.Resource.Generation, cfg.RunPolicy
	good(v1alpha1.ConditionDatabaseReachable, v1alpha1.ConditionSchemaReady, v1alpha1.ConditionSourceReachable)
	r.Consumer = &statusz.Consumer{
		Source: "nats/" + cfg.NATS.Stream, Lag: &statusz.Lag{}, DeadLetters: &statusz.Count{},
		AppliedPerSec: &zero, Parked: &zero, Gaps: &zero, BlockedKeys: &zero,
	}
	return r, nil
}

// say changes what all workers report from now on.
func (w *workers) say(change func(pod string, r *statusz.Report)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.change = change
}

// silence makes a Pod answer nothing any more.
func (w *workers) silence(pod string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.silent[pod] = true
}

// timesAsked returns how often a Pod was asked.
func (w *workers) timesAsked(pod string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asked[pod]
}

// pods lists the Pods of the space.
func (s *space) pods() []corev1.Pod {
	s.t.Helper()
	var pods corev1.PodList
	if err := s.admin.List(s.t.Context(), &pods, client.InNamespace(s.name)); err != nil {
		s.t.Fatal(err)
	}
	return pods.Items
}
