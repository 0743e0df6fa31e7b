//go:build kubernetes

package envtest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/statusz"
)

// kstatus is what tools that wait for a resource make of it.
func (s *space) kstatus(name string) status.Status {
	s.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.KindOutboxRelay))
	if !s.get(name, u) {
		s.t.Fatalf("no relay %s", name)
	}
	result, err := status.Compute(u)
	if err != nil {
		s.t.Fatal(err)
	}
	return result.Status
}

func TestToolsThatWaitReadTheStatus(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.makeRelay(nil)
	s.condition("orders", v1alpha1.ConditionReconciling, metav1.ConditionTrue, v1alpha1.ReasonProgressing)
	if got := s.kstatus("orders"); got != status.InProgressStatus {
		t.Errorf("without workers: %s, want it in progress", got)
	}
	s.runWorkers()
	s.ready("orders")
	if got := s.kstatus("orders"); got != status.CurrentStatus {
		t.Errorf("ready: %s, want it current", got)
	}
	s.changeRelay(
		"orders",
		func(spec *v1alpha1.OutboxRelaySpec) { spec.Source.Postgres.TLS.Mode = v1alpha1.TLSModeInsecure },
	)
	s.condition("orders", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInsecureTransportNotAllowed)
	if got := s.kstatus("orders"); got != status.FailedStatus {
		t.Errorf("stalled: %s, want it failed", got)
	}
	s.changeRelay(
		"orders",
		func(spec *v1alpha1.OutboxRelaySpec) { spec.Source.Postgres.TLS.Mode = v1alpha1.TLSModeVerifyFull },
	)
	s.ready("orders")
	if got := s.kstatus("orders"); got != status.CurrentStatus {
		t.Errorf("mended: %s, want it current", got)
	}
}

// Contract G11: what a worker says is seen within an interval, and what nobody knows is not 0.
func TestAStatusSaysWhatWorkersSay(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	w := s.runWorkers()
	s.makeRelay(nil)
	s.ready("orders")
	since := time.Now().Add(-time.Hour)
	w.say(func(_ string, r *statusz.Report) {
		r.Relay.Backlog = &statusz.Backlog{Messages: 21, Precision: "Exact", OldestMessageTime: &since, Retrying: 1}
		r.Relay.DeadLetters = &statusz.Count{Open: 2, OldestTime: &since}
	})
	relay := s.condition(
		"orders",
		v1alpha1.ConditionDeadLettersHealthy,
		metav1.ConditionFalse,
		v1alpha1.ReasonOpenDeadLetters,
	)
	if b := relay.Status.Backlog; *b.Messages != 42 || *b.Retrying != 2 || b.OldestMessageTime.Unix() != since.Unix() {
		t.Errorf("backlog = %+v, want the sum of two workers", b)
	}
	w.say(func(_ string, r *statusz.Report) {
		r.Conditions[0] = statusz.Condition{
			Type:    v1alpha1.ConditionDatabaseReachable,
			Status:  "False",
			Reason:  v1alpha1.ReasonAuthFailed,
			Message: "password refused",
		}
		r.Relay.Backlog, r.Relay.DeadLetters, r.Relay.PublishedPerSec = nil, nil, nil
	})
	relay = s.condition("orders", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonAuthFailed)
	if relay.Status.Backlog != nil || relay.Status.DeadLetters != nil {
		t.Errorf("counts that nobody knows are there: %+v, %+v", relay.Status.Backlog, relay.Status.DeadLetters)
	}
	w.say(func(_ string, r *statusz.Report) {
		r.Conditions[1] = statusz.Condition{Type: "SchemaReady", Status: "False", Reason: v1alpha1.ReasonSecretNotFound}
	})
	s.condition("orders", v1alpha1.ConditionReferencesResolved, metav1.ConditionFalse, v1alpha1.ReasonSecretNotFound)
	w.say(nil)
	s.ready("orders")
}

func TestOldReportsAreNoKnowledge(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	w := s.runWorkers()
	s.makeRelay(nil)
	s.ready("orders")
	for _, pod := range s.pods() {
		w.silence(pod.Name)
	}
	relay := s.condition("orders", v1alpha1.ConditionReady, metav1.ConditionUnknown, v1alpha1.ReasonStatusStale)
	if relay.Status.Backlog != nil {
		t.Errorf("backlog = %+v, want it unknown", relay.Status.Backlog)
	}
}

// Contract G14: while nothing changes nothing is written, also with a key that waits for its retry.
func TestRestIsQuiet(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	w := s.runWorkers()
	waits := time.Now().Add(-time.Hour)
	w.say(func(_ string, r *statusz.Report) {
		if r.Relay != nil {
			r.Relay.Backlog.Messages, r.Relay.Backlog.Retrying, r.Relay.Backlog.OldestMessageTime = 1, 1, &waits
			r.Relay.Backlog.InFlight = time.Now().Unix() % 2 // the retry comes and goes
			r.Relay.DeadLetters = &statusz.Count{Open: 1, OldestTime: &waits}
		}
	})
	relay, consumer := s.makeRelay(nil), s.makeConsumer()
	s.ready("orders")
	var pod string
	for _, p := range s.pods() {
		if p.Labels["postrider.dev/outboxrelay"] != "" {
			pod = p.Name
		}
	}
	versions := func() string {
		s.get("orders", relay)
		s.get("billing", consumer)
		all := relay.ResourceVersion + " " + consumer.ResourceVersion
		for _, name := range []string{"orders-relay", "billing-consumer"} {
			objects := s.children(name)
			for _, kind := range slices.Sorted(maps.Keys(objects)) {
				s.get(name, objects[kind])
				all += " " + objects[kind].GetResourceVersion()
			}
		}
		return all
	}
	// The last words of the roll-out come when the machine has time for them. Then five looks pass without a write, and
	// without another version of anything.
	last, since, looks := "", 0, -1
	eventually(t, "five looks without a write", func() string {
		if n := w.timesAsked(pod); n != looks {
			looks = n
			if now := fmt.Sprint(s.sent.in(s.name), versions()); now != last {
				last, since = now, n
			}
		}
		if n := looks - since; n < 5 {
			return fmt.Sprintf("%d looks since the last write: %s", n, last)
		}
		return ""
	})
}

// Under a trickle of one message a second, and under full load, a resource's status is written at most once a look,
// which is once an interval, four times a minute with the usual one; and nothing else is.
func TestLoadWritesLittle(t *testing.T) {
	t.Parallel()
	trickle := func(r *statusz.Report, look int64) {
		now, one := time.Now(), int64(1)
		r.Relay.PublishedPerSec, r.Relay.ArrivedPerSec, r.Relay.LastPublishedTime = &one, &one, &now
		r.Relay.Backlog.Messages, r.Relay.Backlog.OldestMessageTime = look%2, &now
	}
	full := func(r *statusz.Report, look int64) {
		now := time.Now()
		oldest, rate := now.Add(-time.Duration(look%7)*time.Second), 2000+1000*(look%3)
		r.Relay.PublishedPerSec, r.Relay.ArrivedPerSec, r.Relay.LastPublishedTime = &rate, &rate, &now
		r.Relay.Backlog.Messages, r.Relay.Backlog.InFlight = 1000+3000*(look%5), look%500
		r.Relay.Backlog.OldestMessageTime = &oldest
	}
	const intervals = 4
	var spaces []*space
	var looks [2]atomic.Int64
	for i, load := range []func(*statusz.Report, int64){trickle, full} {
		s := newSpace(t)
		spaces = append(spaces, s)
		s.runWorkers().say(func(_ string, r *statusz.Report) { load(r, looks[i].Add(1)) })
		s.makeRelay(nil)
	}
	before := make([]map[string]int, len(spaces))
	for i, s := range spaces {
		s.ready("orders")
		settled := looks[i].Load()
		eventually(t, "the looks to slow down", func() string { // two Pods, five looks: after 2, 2, 4, 5 and 5 s
			if n := looks[i].Load() - settled; n < 10 {
				return fmt.Sprintf("%d reports", n)
			}
			return ""
		})
	}
	for i, s := range spaces {
		before[i] = s.sent.in(s.name)
		looks[i].Store(0)
	}
	eventually(t, "some more looks", func() string {
		if n := looks[1].Load(); n < 2*intervals {
			return fmt.Sprintf("%d reports", n)
		}
		return ""
	})
	for i, s := range spaces {
		after := s.sent.in(s.name)
		// Two Pods report a look, and the word of the look before the first may have been on its way.
		most := int((looks[i].Load()+1)/2) + 1
		for path, n := range after {
			switch n -= before[i][path]; {
			case n > 0 && !strings.HasSuffix(path, "/outboxrelays/orders/status"):
				t.Errorf("%d times %s, want nothing but status written", n, path)
			case n > most:
				t.Errorf("load %d: status was written %d times, want at most %d", i, n, most)
			default:
				t.Logf("load %d: %s %d times of at most %d", i, path, n, most)
			}
		}
	}
}

// Security T16: labels are anybody's. Only Pods of our own Deployment are asked, and no other is counted.
func TestAPodWithOurLabelsIsNotAsked(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	w := s.runWorkers()
	s.makeRelay(nil)
	s.ready("orders")
	own := s.pods()[0]
	fake := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "fake", Namespace: s.name, Labels: own.Labels},
		Spec: corev1.PodSpec{
			ServiceAccountName: own.Spec.ServiceAccountName, Containers: []corev1.Container{{Name: "x", Image: "x"}},
		},
	}
	delete(fake.Labels, "pod-template-hash") // or the ReplicaSet would take it in
	other := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: s.name, Labels: fake.Labels}}
	none := int32(0)
	other.Spec.Replicas = &none
	other.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
	other.Spec.Template.Labels = map[string]string{"a": "b"}
	other.Spec.Template.Spec.Containers = fake.Spec.Containers
	if err := s.admin.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.Create(t.Context(), fake); err != nil {
		t.Fatal(err)
	}
	w.say(func(pod string, r *statusz.Report) {
		if pod == "fake" {
			r.Relay.Backlog.Messages = 1000000
		}
	})
	asked := w.timesAsked(own.Name)
	eventually(t, "three more looks", func() string {
		if w.timesAsked(own.Name)-asked < 3 {
			return "not yet"
		}
		return ""
	})
	if n := w.timesAsked("fake"); n > 0 {
		t.Errorf("the fake Pod was asked %d times", n)
	}
	if relay := s.ready("orders"); *relay.Status.Backlog.Messages != 0 {
		t.Errorf("backlog = %d, want nothing of the fake Pod", *relay.Status.Backlog.Messages)
	}
}

// GitOps: what is applied is stored as it is, so applying it again changes nothing and no difference is seen.
func TestApplyingTheSamplesTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.runWorkers()
	dir := t.TempDir()
	for _, file := range []string{"orders-relay.yaml", "billing-consumer.yaml"} {
		raw, err := os.ReadFile(filepath.Join(samples, file))
		if err != nil {
			t.Fatal(err)
		}
		moved := strings.ReplaceAll(string(raw), "namespace: shop", "namespace: "+s.name)
		if err := os.WriteFile(filepath.Join(dir, file), []byte(moved), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, how := range [][]string{{"apply"}, {"apply"}, {"apply", "--server-side"}, {"apply", "--server-side"}} {
		out, err := s.plane.Kubectl(t.Context(), append(how, "-f", dir)...).CombinedOutput()
		if err != nil {
			if len(how) == 2 { // the fields are those of the client-side apply: taken over below
				out, err = s.plane.Kubectl(t.Context(), append(how, "--force-conflicts", "-f", dir)...).CombinedOutput()
			}
			if err != nil {
				t.Fatalf("kubectl %v: %v\n%s", how, err, out)
			}
		}
	}
	relay := s.ready("orders")
	if relay.Generation != 1 {
		t.Errorf("generation %d after applying four times, want 1", relay.Generation)
	}
	if out, err := s.plane.Kubectl(t.Context(), "diff", "-f", dir).CombinedOutput(); err != nil {
		t.Errorf("kubectl diff: %v\n%s", err, out)
	}
	out, err := s.plane.Kubectl(t.Context(), "-n", s.name, "get", "obr,ibc").CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl get: %v\n%s", err, out)
	}
	for _, want := range []string{"BACKLOG", "LAG", "True", "nats/orders.events", "nats/ORDERS"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("kubectl get does not show %q:\n%s", want, out)
		}
	}
}

// A change that workers take over live changes no Pod; one that they cannot rolls them.
func TestLiveAndRollingChanges(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.runWorkers()
	s.makeRelay(nil)
	s.ready("orders")
	names := func() string {
		var all []string
		for _, pod := range s.pods() {
			all = append(all, pod.Name)
		}
		return strings.Join(all, " ")
	}
	before := names()
	s.changeRelay("orders", func(spec *v1alpha1.OutboxRelaySpec) { spec.Batch.MaxMessages = 9 })
	s.ready("orders")
	if now := names(); now != before {
		t.Errorf("Pods were %s and are %s", before, now)
	}
	s.changeRelay(
		"orders",
		func(spec *v1alpha1.OutboxRelaySpec) { spec.Source.Postgres.CredentialsSecretRef.Name = "other" },
	)
	s.ready("orders")
	for old := range strings.FieldsSeq(before) {
		if strings.Contains(names(), old) {
			t.Errorf("Pod %s runs on", old)
		}
	}
}

// The operator's events: one for a change, none for the rest.
func TestEventsTellTransitions(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	w := s.runWorkers()
	s.makeRelay(nil)
	s.ready("orders")
	w.say(func(_ string, r *statusz.Report) {
		r.Conditions[2] = statusz.Condition{
			Type:    "BrokerReachable",
			Status:  "False",
			Reason:  v1alpha1.ReasonUnreachable,
			Message: "no answer",
		}
	})
	s.condition("orders", v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonUnreachable)
	w.say(nil)
	s.ready("orders")
	eventually(t, "three events", func() string {
		var events corev1.EventList
		if err := s.admin.List(t.Context(), &events, client.InNamespace(s.name)); err != nil {
			return err.Error()
		}
		var words []string
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == v1alpha1.KindOutboxRelay {
				words = append(words, e.Type+" "+e.Reason)
			}
		}
		if got := strings.Join(
			words,
			", ",
		); len(words) < 2 || !strings.Contains(got, "Warning Unreachable") ||
			!strings.Contains(got, "Normal Ready") {
			return got
		}
		return ""
	})
}
