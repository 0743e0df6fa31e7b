package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/statusz"
)

// workers are Pods that answer, by name, and count how often they are asked.
type workers struct {
	report map[string]statusz.Report
	asked  int
}

// Report implements Scraper.
func (w *workers) Report(_ context.Context, pod *corev1.Pod) (statusz.Report, error) {
	w.asked++
	r, ok := w.report[pod.Name]
	if !ok {
		return r, errors.New("no answer")
	}
	return r, nil
}

// scene is one relay at a time that the test moves.
type scene struct {
	relays  *reconciler[*v1alpha1.OutboxRelay, v1alpha1.OutboxRelayStatus]
	workers *workers
	relay   *v1alpha1.OutboxRelay
	seen    *observed
	now     time.Time
	slow    bool
}

func newScene(names ...string) *scene {
	s := &scene{
		workers: &workers{report: make(map[string]statusz.Report)},
		now:     time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC),
		relay: &v1alpha1.OutboxRelay{ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: "orders", UID: "u1", Generation: 1,
		}},
		seen: &observed{},
	}
	s.relays = &reconciler[*v1alpha1.OutboxRelay, v1alpha1.OutboxRelayStatus]{kind: relays(), Options: Options{
		Scraper: s.workers, Now: func() time.Time { return s.now },
	}}
	for _, name := range names {
		s.add(name)
	}
	return s
}

func (s *scene) add(name string) {
	s.seen.pods = append(s.seen.pods, pod(name, func(p *corev1.Pod) {
		p.UID, p.Status.PodIP = types.UID("uid-"+name), "192.0.2.1"
	}))
	s.workers.report[name] = statusz.Report{Namespace: "shop", Name: "orders", Worker: name}
}

// look looks after so much time.
func (s *scene) look(t *testing.T, after time.Duration) *looked[v1alpha1.OutboxRelayStatus] {
	t.Helper()
	s.now = s.now.Add(after)
	for name, r := range s.workers.report {
		var none int64
		r.Relay = &statusz.Relay{Backlog: &statusz.Backlog{Precision: "Exact"}, PublishedPerSec: &none}
		if s.slow {
			r.Relay.Backlog.Messages = 1000
		}
		s.workers.report[name] = r
	}
	return s.relays.look(t.Context(), s.relay, s.seen)
}

func TestLookAsksOnceAnIntervalWhileNothingChanges(t *testing.T) {
	t.Parallel()
	s := newScene("a", "b")
	s.look(t, 0)
	s.look(t, time.Hour)
	before := s.workers.asked
	for range 60 { // events in between must not ask
		s.look(t, time.Second)
	}
	if got := s.workers.asked - before; got != 2*4 {
		t.Errorf("asked %d times in a minute, want both workers four times", got)
	}
}

func TestLookAsksSoonerWhileSomethingChanges(t *testing.T) {
	t.Parallel()
	s := newScene("a")
	l := s.look(t, 0)
	var pauses []time.Duration
	for range 6 {
		pauses = append(pauses, l.next)
		l = s.look(t, l.next)
	}
	if got := fmt.Sprint(pauses); got != "[2s 2s 4s 8s 15s 15s]" {
		t.Errorf("pauses = %v, want them to grow to the interval", got)
	}
	s.relay.Generation = 2
	if l := s.look(t, time.Second); !l.fresh || l.next != 2*time.Second {
		t.Errorf("another generation: fresh %v, next %v, want a look at once and soon again", l.fresh, l.next)
	}
}

func TestLookAsksANewPodAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene("a")
	s.look(t, 0)
	s.look(t, time.Hour)
	s.add("b")
	if l := s.look(t, time.Second); len(l.reports) != 2 {
		t.Errorf("%d reports, want the new Pod's too", len(l.reports))
	}
}

func TestLookKeepsTheLastWordForThreeIntervals(t *testing.T) {
	t.Parallel()
	s := newScene("a", "b")
	s.look(t, 0)
	delete(s.workers.report, "b")
	if l := s.look(t, 44*time.Second); len(l.reports) != 2 || l.stale {
		t.Errorf("after 44s: %d reports, stale %v, want 2", len(l.reports), l.stale)
	}
	if l := s.look(t, time.Second); len(l.reports) != 1 || !l.stale || l.reported["uid-b"] {
		t.Errorf("after 45s: %d reports, stale %v, want 1 and stale", len(l.reports), l.stale)
	}
}

func TestAPodThatNeverAnsweredIsNotStale(t *testing.T) {
	t.Parallel()
	s := newScene("a")
	delete(s.workers.report, "a")
	s.look(t, 0)
	if l := s.look(t, time.Hour); l.stale || len(l.reports) != 0 {
		t.Errorf("stale %v, %d reports, want neither", l.stale, len(l.reports))
	}
}

func TestLookTakesNoReportOfAnotherResource(t *testing.T) {
	t.Parallel()
	s := newScene("a")
	s.workers.report["a"] = statusz.Report{Namespace: "shop", Name: "others"}
	if l := s.look(t, 0); len(l.reports) != 0 {
		t.Errorf("it took %+v", l.reports)
	}
}

func TestLookForgetsPodsAndResourcesThatAreGone(t *testing.T) {
	t.Parallel()
	s := newScene("a", "b")
	s.look(t, 0)
	s.seen.pods = s.seen.pods[:1]
	l := s.look(t, time.Second)
	if len(l.memory.heard) != 1 {
		t.Errorf("%d Pods are remembered, want 1", len(l.memory.heard))
	}
	s.relay.UID = "u2" // deleted and made again
	if l := s.look(t, time.Second); l.last != nil || !l.fresh {
		t.Error("the new resource of the name has the memory of the old one")
	}
	s.relays.memory.forget(types.NamespacedName{Namespace: "shop", Name: "orders"})
	if n := len(s.relays.memory.all); n != 0 {
		t.Errorf("%d resources are remembered, want none", n)
	}
}

func TestSlowCountsFromTheFirstSlowLook(t *testing.T) {
	t.Parallel()
	s := newScene("a")
	s.look(t, 0)
	s.slow = true
	first := s.look(t, time.Hour)
	since := first.memory.slowSince
	s.look(t, time.Minute)
	if !first.memory.slowSince.Equal(since) || since.IsZero() {
		t.Errorf("slow since %v, want it to stay at %v", first.memory.slowSince, since)
	}
	s.slow = false
	if l := s.look(t, time.Minute); !l.memory.slowSince.IsZero() {
		t.Error("slow for ever")
	}
}
