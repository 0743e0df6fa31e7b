//go:build kubernetes

package envtest

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/statusz"
)

// BenchmarkManager measures a manager, in a process of its own, with a hundred relays of two workers each: the memory
// at its highest, and the processor time a second at rest and while every relay publishes.
func BenchmarkManager(b *testing.B) {
	const (
		resources = 100
		window    = time.Minute
	)
	for b.Loop() {
		bed, _ := own(b)
		s := spaceIn(b, bed, "many")
		w := s.runWorkersAt(desired.StatusPort) // where a manager that is installed asks
		p := startManager(b, buildManager(b), bed.plane.Kubeconfig, "--network-policy-from=default")
		began := time.Now()
		for i := range resources {
			relay := &v1alpha1.OutboxRelay{}
			s.sample("orders-relay.yaml", relay)
			relay.Name = fmt.Sprintf("relay-%03d", i)
			if err := s.admin.Create(b.Context(), relay); err != nil {
				b.Fatal(err)
			}
		}
		s.allReady(resources)
		b.ReportMetric(time.Since(began).Seconds(), "s-until-ready")
		wait(b, window/2) // what the start has left to do
		b.ReportMetric(1000*p.processorTime(b, window), "ms-CPU/s-at-rest")
		w.say(func(_ string, r *statusz.Report) {
			now := time.Now()
			rate := int64(900 + now.Second()*10)
			r.Relay.PublishedPerSec, r.Relay.LastPublishedTime = &rate, &now
			r.Relay.Backlog.Messages, r.Relay.Backlog.OldestMessageTime = rate*2, &now
		})
		b.ReportMetric(1000*p.processorTime(b, window), "ms-CPU/s-under-load")
		b.ReportMetric(p.highestMemory(b), "MiB-at-most")
	}
}

// allReady waits until so many relays are.
func (s *space) allReady(n int) {
	s.t.Helper()
	var relays v1alpha1.OutboxRelayList
	deadline := time.Now().Add(5 * patience)
	for {
		if err := s.admin.List(s.t.Context(), &relays, client.InNamespace(s.name)); err != nil {
			s.t.Fatal(err)
		}
		ready := 0
		for i := range relays.Items {
			if is(relays.Items[i].Status.Conditions, v1alpha1.ConditionReady, "True", v1alpha1.ReasonReady) {
				ready++
			}
		}
		switch {
		case ready == n:
			return
		case time.Now().After(deadline):
			s.t.Fatalf("%d of %d relays are ready", ready, n)
		}
		wait(s.t, time.Second)
	}
}

func wait(t testing.TB, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
	}
}

// processorTime returns the seconds of processor that the process takes a second.
func (p *process) processorTime(t testing.TB, window time.Duration) float64 {
	t.Helper()
	const ticks = 100 // a second, on every Linux
	used := func() float64 {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:])) // from the third field on
		var sum float64
		for _, field := range fields[11:13] { // utime and stime
			n, err := strconv.ParseFloat(field, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
		return sum / ticks
	}
	before := used()
	wait(t, window)
	return (used() - before) / window.Seconds()
}

// highestMemory returns the most MiB that the process has had in memory.
func (p *process) highestMemory(t testing.TB) float64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var kib float64
	_, rest, _ := strings.Cut(string(raw), "VmHWM:")
	if _, err := fmt.Sscan(rest, &kib); err != nil {
		t.Fatal(err)
	}
	return kib / 1024
}
