//go:build kubernetes

package envtest

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
)

// children are the objects of a resource.
func (s *space) children(name string) map[string]client.Object {
	meta := metav1.ObjectMeta{Name: name, Namespace: s.name}
	return map[string]client.Object{
		"ServiceAccount":      &corev1.ServiceAccount{ObjectMeta: meta},
		"ConfigMap":           &corev1.ConfigMap{ObjectMeta: meta},
		"PodDisruptionBudget": &policyv1.PodDisruptionBudget{ObjectMeta: meta},
		"NetworkPolicy":       &networkingv1.NetworkPolicy{ObjectMeta: meta},
		"Deployment":          &appsv1.Deployment{ObjectMeta: meta},
	}
}

func TestResourcesBecomeWorkloads(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.runWorkers()
	relay, consumer := s.makeRelay(nil), s.makeConsumer()

	got := s.ready(relay.Name)
	eventually(t, "the consumer to be ready", func() string {
		s.get(consumer.Name, consumer)
		for _, c := range consumer.Status.Conditions {
			if c.Type == v1alpha1.ConditionReady && c.Status == metav1.ConditionTrue {
				return ""
			}
		}
		return conditions(consumer.Status.Conditions)
	})

	for owner, name := range map[client.Object]string{relay: "orders-relay", consumer: "billing-consumer"} {
		s.hasChildren(owner, name)
	}
	status := got.Status
	if *status.Replicas != 2 || *status.ReadyReplicas != 2 || status.ObservedGeneration != got.Generation ||
		status.Destination != "nats/orders.events" || *status.Backlog.Messages != 0 || *status.Lease.Held != 8 {
		t.Errorf("status = %+v", status)
	}
}

// hasChildren checks that every object is there and controlled by its resource, and that no Pod has a token.
func (s *space) hasChildren(owner client.Object, name string) {
	s.t.Helper()
	for kind, child := range s.children(name) {
		if !s.get(name, child) || !metav1.IsControlledBy(child, owner) {
			s.t.Errorf("%s %s is not there or not controlled by its resource", kind, name)
		}
	}
	for _, pod := range s.pods() {
		if pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken {
			s.t.Errorf("Pod %s has a token", pod.Name)
		}
	}
}

func TestDriftIsRepairedAndWhatIsOthersIsLeftAlone(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.runWorkers()
	s.makeRelay(nil)
	s.ready("orders")
	const name = "orders-relay"

	d := &appsv1.Deployment{}
	s.get(name, d)
	before := d.DeepCopy()
	d.Spec.Template.Spec.Containers[0].Image = "evil:latest"
	d.Spec.Template.Spec.Containers[0].Command = nil
	d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] = "now"
	d.Annotations = map[string]string{"example.com/note": "mine"}
	if err := s.admin.Patch(t.Context(), d, client.MergeFrom(before)); err != nil {
		t.Fatal(err)
	}
	file := &corev1.ConfigMap{}
	s.get(name, file)
	file.Data["config.json"] = "{}"
	if err := s.admin.Update(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	for kind, child := range s.children(name) {
		if kind == "PodDisruptionBudget" || kind == "ServiceAccount" || kind == "NetworkPolicy" {
			if err := s.admin.Delete(t.Context(), child); err != nil {
				t.Fatal(err)
			}
		}
	}

	eventually(t, "all to be as it was", func() string {
		for kind, child := range s.children(name) {
			if !s.get(name, child) {
				return "no " + kind
			}
		}
		s.get(name, d)
		s.get(name, file)
		worker := d.Spec.Template.Spec.Containers[0]
		if worker.Image != image || len(worker.Command) != 1 || file.Data["config.json"] == "{}" {
			return fmt.Sprintf(
				"image %s, command %v, config of %d bytes",
				worker.Image,
				worker.Command,
				len(file.Data["config.json"]),
			)
		}
		return ""
	})
	s.ready("orders")
	s.get(name, d)
	if d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "now" ||
		d.Annotations["example.com/note"] != "mine" {
		t.Errorf("annotations of others are gone: %v, %v", d.Annotations, d.Spec.Template.Annotations)
	}
}

// replicas waits for the number of a Deployment.
func (s *space) replicas(want int32) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d replicas", want), func() string {
		d := &appsv1.Deployment{}
		if !s.get("orders-relay", d) || d.Spec.Replicas == nil || *d.Spec.Replicas != want {
			return fmt.Sprintf("deployment %v", d.Spec.Replicas)
		}
		return ""
	})
}

// scale scales an object the way kubectl and autoscalers do.
func (s *space) scale(o client.Object, n int32) {
	s.t.Helper()
	body := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: n}}
	body.Name, body.Namespace = o.GetName(), s.name
	if err := s.admin.SubResource("scale").Update(s.t.Context(), o, client.WithSubResourceBody(body)); err != nil {
		s.t.Fatal(err)
	}
}

func TestReplicasBelongToWhoeverScales(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.runWorkers()
	relay := s.makeRelay(func(r *v1alpha1.OutboxRelay) { r.Spec.Replicas = nil })
	s.ready("orders")
	s.replicas(2)

	d := &appsv1.Deployment{}
	s.get("orders-relay", d)
	s.scale(d, 5)
	s.changeRelay("orders", func(spec *v1alpha1.OutboxRelaySpec) {
		spec.Batch.MaxMessages = 7
		spec.Workload.Labels = map[string]v1alpha1.LabelValue{"a": "b"}
	})
	s.ready("orders") // of the new generation: the operator has applied since
	s.replicas(5)

	three := int32(3)
	s.changeRelay("orders", func(spec *v1alpha1.OutboxRelaySpec) { spec.Replicas = &three })
	s.ready("orders")
	s.replicas(3)

	s.get("orders", relay)
	s.scale(relay, 4) // of the resource
	s.ready("orders")
	s.replicas(4)

	s.changeRelay("orders", func(spec *v1alpha1.OutboxRelaySpec) { spec.Replicas = nil })
	s.ready("orders")
	s.replicas(4) // left as it was
	s.get("orders-relay", d)
	s.scale(d, 1)
	s.changeRelay("orders", func(spec *v1alpha1.OutboxRelaySpec) { spec.Batch.MaxMessages = 8 })
	s.ready("orders")
	s.replicas(1)
}

// Security T15: what is not ours is never touched.
func TestAnObjectOfTheNameIsNotTouched(t *testing.T) {
	t.Parallel()
	kinds := []string{"ServiceAccount", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy", "Deployment"}
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			s := newSpace(t)
			s.runWorkers()
			foreign := s.children("orders-relay")[kind]
			switch o := foreign.(type) {
			case *appsv1.Deployment:
				labels := map[string]string{"app": "theirs"}
				o.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
				o.Spec.Template.Labels = labels
				o.Spec.Template.Spec.Containers = []corev1.Container{{Name: "theirs", Image: "theirs"}}
			case *corev1.ConfigMap:
				o.Data = map[string]string{"theirs": "x"}
			}
			if err := s.admin.Create(t.Context(), foreign); err != nil {
				t.Fatal(err)
			}
			s.makeRelay(nil)

			s.condition("orders", v1alpha1.ConditionNameConflict, metav1.ConditionTrue, v1alpha1.ReasonInUse)
			relay := s.condition(
				"orders",
				v1alpha1.ConditionStalled,
				metav1.ConditionTrue,
				v1alpha1.ConditionNameConflict,
			)

			now := foreign.DeepCopyObject().(client.Object)
			s.get("orders-relay", now)
			if len(now.GetOwnerReferences()) > 0 || len(now.GetLabels()) > 0 ||
				now.GetGeneration() != foreign.GetGeneration() {
				t.Errorf("it was touched: %+v", now)
			}
			for other, child := range s.children("orders-relay") {
				if other != kind && s.get("orders-relay", child) {
					t.Errorf("%s was made all the same", other)
				}
			}
			if c := conditions(relay.Status.Conditions); !strings.Contains(c, kind+" orders-relay exists") {
				t.Errorf("the condition does not name it: %s", c)
			}

			if err := s.admin.Delete(t.Context(), now); err != nil {
				t.Fatal(err)
			}
			s.ready("orders")
		})
	}
}

func TestPlainTextNeedsTheOperatorsConsent(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.makeRelay(func(r *v1alpha1.OutboxRelay) { r.Spec.Source.Postgres.TLS.Mode = v1alpha1.TLSModeInsecure })
	s.condition("orders", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonInsecureTransportNotAllowed)
	for kind, child := range s.children("orders-relay") {
		if s.get("orders-relay", child) {
			t.Errorf("%s was made", kind)
		}
	}
	s.changeRelay(
		"orders",
		func(spec *v1alpha1.OutboxRelaySpec) { spec.Source.Postgres.TLS.Mode = v1alpha1.TLSModeVerifyFull },
	)
	eventually(t, "the Deployment", func() string {
		if !s.get("orders-relay", &appsv1.Deployment{}) {
			return "none"
		}
		return ""
	})
}

func TestPriorityClassesAreTheOperatorsChoice(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.makeRelay(func(r *v1alpha1.OutboxRelay) { r.Spec.Workload.PriorityClassName = "system-node-critical" })
	s.condition("orders", v1alpha1.ConditionStalled, metav1.ConditionTrue, v1alpha1.ReasonPriorityClassNotAllowed)
}

// Contract R17 and security T22: nothing that could be unreachable stands between a delete and its end. L23: what goes is
// what the operator has made of that resource; what carries its labels, or is named by it, stays.
func TestDeletionNeedsNobody(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.makeRelay(nil) // its hosts do not exist, and no worker ever runs
	consumer := s.makeConsumer()
	eventually(t, "the workloads", func() string {
		if !s.get("orders-relay", &appsv1.Deployment{}) || !s.get("billing-consumer", &appsv1.Deployment{}) {
			return "not made yet"
		}
		return ""
	})
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	relay, made := &v1alpha1.OutboxRelay{}, &appsv1.Deployment{}
	s.get("orders", relay)
	s.get("orders-relay", made)
	theirs := map[string]client.Object{
		relay.Spec.Source.Postgres.CredentialsSecretRef.Name: &corev1.Secret{}, "labelled": &corev1.ConfigMap{},
	}
	for name, o := range theirs {
		o.SetName(name)
		o.SetNamespace(s.name)
		o.SetLabels(made.Labels)
		if err := s.admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.admin.Delete(t.Context(), relay); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the relay's objects to go", func() string {
		for kind, child := range s.children("orders-relay") {
			if s.get("orders-relay", child) {
				return kind + " is still there"
			}
		}
		return ""
	})
	for name, o := range theirs {
		if !s.get(name, o) {
			t.Errorf("%T %s is gone with the relay, and is not its own", o, name)
		}
	}
	s.hasChildren(consumer, "billing-consumer")
	if err := s.admin.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace to go", func() string {
		if err := s.admin.Get(t.Context(), client.ObjectKeyFromObject(ns), ns); err == nil {
			return fmt.Sprintf("%+v", ns.Status)
		}
		return ""
	})
}

func TestARecreatedResourceTakesNothingOver(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	s.runWorkers()
	relay := s.makeRelay(nil)
	s.ready("orders")
	if err := s.admin.Delete(t.Context(), relay); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the relay to go", func() string {
		if s.get("orders", &v1alpha1.OutboxRelay{}) {
			return "still there"
		}
		return ""
	})
	again := s.makeRelay(nil)
	s.ready("orders")
	for kind, child := range s.children("orders-relay") {
		if !s.get("orders-relay", child) || !metav1.IsControlledBy(child, again) {
			t.Errorf("%s is not the new resource's", kind)
		}
	}
}
