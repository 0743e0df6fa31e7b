package controller

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/status"
	"github.com/postrider/postrider/internal/statusz"
)

const (
	// shortestPause is that between two looks while something changes.
	shortestPause = 2 * time.Second
	// usualInterval stands in for an interval that cannot be read.
	usualInterval = 15 * time.Second
	// askedAtOnce bounds the requests to the Pods of one resource.
	askedAtOnce = 32
)

// memory is what is remembered of one resource between passes. With the process it is lost, which costs one look.
type memory[S any] struct {
	uid types.UID
	// heard holds the last report of each Pod.
	heard map[types.UID]heard
	// due is when to look again, changed the time of the last change of generation or Pods: the longer nothing
	// changes, the longer the pauses, up to the resource's interval.
	due, changed time.Time
	generation   int64
	// slowSince is when the workers began to be too slow; zero while they are not.
	slowSince time.Time
	// last is the status of the last look.
	last *S
}

type heard struct {
	report statusz.Report
	at     time.Time
}

// memories hold one memory a resource. A resource is worked on by one pass at a time.
type memories[S any] struct {
	mu  sync.Mutex
	all map[types.NamespacedName]*memory[S]
}

func (m *memories[S]) of(owner client.Object) *memory[S] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = make(map[types.NamespacedName]*memory[S])
	}
	key := client.ObjectKeyFromObject(owner)
	found := m.all[key]
	if found == nil || found.uid != owner.GetUID() {
		found = &memory[S]{uid: owner.GetUID(), heard: make(map[types.UID]heard)}
		m.all[key] = found
	}
	return found
}

func (m *memories[S]) forget(key types.NamespacedName) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.all, key)
}

// looked is what is known of the workers now.
type looked[S any] struct {
	memory  *memory[S]
	reports []statusz.Report
	// reported holds the Pods of the reports.
	reported map[types.UID]bool
	// stale says that a Pod has reported, but too long ago.
	stale    bool
	interval time.Duration
	now      time.Time
	// next is when to look again.
	next time.Duration
	// last is the status of the look before; nil if this pass has not looked anew.
	last  *S
	fresh bool
}

// remember keeps the status of a new look.
func (l *looked[S]) remember(s S) {
	if l.fresh {
		l.memory.last = &s
	}
}

// look asks the workers when it is time, and at once when there is another generation or Pod.
func (r *reconciler[R, S]) look(ctx context.Context, resource R, seen *observed) *looked[S] {
	now := r.Now()
	m := r.memory.of(resource)
	l := &looked[S]{
		memory: m, interval: parsed(r.kind.parts(resource).interval), now: now, reported: make(map[types.UID]bool),
	}
	ask := askable(seen.pods)
	if m.generation != resource.GetGeneration() || m.replaced(ask) {
		m.generation, m.changed = resource.GetGeneration(), now
		m.due = now
	}
	if !now.Before(m.due) {
		r.ask(ctx, resource, m, ask)
		l.last, l.fresh = m.last, true
		m.due = now.Add(min(max(now.Sub(m.changed), shortestPause), l.interval))
	}
	l.next = max(m.due.Sub(now), shortestPause/2)
	l.collect(m, seen.pods)
	if l.fresh {
		m.judge(r.kind.rules.Slow(l.reports), now)
	}
	return l
}

// collect takes the reports that are new enough, in the order of the Pods.
func (l *looked[S]) collect(m *memory[S], pods []*corev1.Pod) {
	present := make(map[types.UID]bool, len(pods))
	for _, pod := range pods {
		present[pod.UID] = true
		h, ok := m.heard[pod.UID]
		switch {
		case !ok || h.at.IsZero():
		case l.now.Sub(h.at) >= status.StaleAfter(l.interval):
			l.stale = true
		default:
			l.reports = append(l.reports, h.report)
			l.reported[pod.UID] = true
		}
	}
	for uid := range m.heard {
		if !present[uid] {
			delete(m.heard, uid)
		}
	}
}

// replaced says whether there are Pods that were not asked yet.
func (m *memory[S]) replaced(pods []*corev1.Pod) bool {
	for _, pod := range pods {
		if _, asked := m.heard[pod.UID]; !asked {
			return true
		}
	}
	return false
}

// judge notes since when the workers are too slow.
func (m *memory[S]) judge(slow bool, now time.Time) {
	switch {
	case !slow:
		m.slowSince = time.Time{}
	case m.slowSince.IsZero():
		m.slowSince = now
	}
}

// ask asks all Pods and keeps what they say. Of a Pod that does not answer the last word stands until it is too old.
func (r *reconciler[R, S]) ask(ctx context.Context, owner client.Object, m *memory[S], pods []*corev1.Pod) {
	answers := make([]*statusz.Report, len(pods))
	slots := make(chan struct{}, askedAtOnce)
	var asked sync.WaitGroup
	for i, pod := range pods {
		asked.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			said, err := r.Scraper.Report(ctx, pod)
			if err == nil && (said.Namespace != owner.GetNamespace() || said.Name != owner.GetName()) {
				err = errOtherResource
			}
			if err != nil {
				log.FromContext(ctx).V(1).Info("No report", "pod", pod.Name, "err", err.Error())
				return
			}
			answers[i] = &said
		})
	}
	asked.Wait()
	for i, pod := range pods {
		if answers[i] != nil {
			m.heard[pod.UID] = heard{report: *answers[i], at: r.Now()}
		} else if _, before := m.heard[pod.UID]; !before {
			m.heard[pod.UID] = heard{} // asked: the next time is with all others
		}
	}
}

// askable are the Pods in which a container runs, the step before the worker included.
func askable(pods []*corev1.Pod) []*corev1.Pod {
	var ask []*corev1.Pod
	for _, pod := range pods {
		if pod.Status.PodIP != "" && pod.Status.Phase != corev1.PodFailed && pod.Status.Phase != corev1.PodSucceeded &&
			!pod.Spec.HostNetwork {
			ask = append(ask, pod)
		}
	}
	return ask
}

// parsed reads an interval that the schema has accepted.
func parsed(d v1alpha1.Duration) time.Duration {
	v, err := d.Parse()
	if err != nil || v <= 0 {
		return usualInterval
	}
	return v
}
