//go:build kubernetes

package envtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
)

const samples = "../../config/samples"

// sample reads a sample into the space.
func (s *space) sample(file string, into client.Object) {
	s.t.Helper()
	raw, err := os.ReadFile(filepath.Join(samples, file))
	if err != nil {
		s.t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(raw, into); err != nil {
		s.t.Fatal(err)
	}
	into.SetNamespace(s.name)
}

// makeRelay makes the sample relay, with the shortest interval.
func (s *space) makeRelay(change func(*v1alpha1.OutboxRelay)) *v1alpha1.OutboxRelay {
	s.t.Helper()
	relay := &v1alpha1.OutboxRelay{}
	s.sample("orders-relay.yaml", relay)
	relay.Spec.StatusInterval = "5s"
	if change != nil {
		change(relay)
	}
	if err := s.admin.Create(s.t.Context(), relay); err != nil {
		s.t.Fatal(err)
	}
	return relay
}

// makeConsumer makes the sample consumer, with the shortest interval.
func (s *space) makeConsumer() *v1alpha1.InboxConsumer {
	s.t.Helper()
	consumer := &v1alpha1.InboxConsumer{}
	s.sample("billing-consumer.yaml", consumer)
	consumer.Spec.StatusInterval = "5s"
	if err := s.admin.Create(s.t.Context(), consumer); err != nil {
		s.t.Fatal(err)
	}
	return consumer
}

// changeRelay changes the spec of a relay.
func (s *space) changeRelay(name string, change func(*v1alpha1.OutboxRelaySpec)) {
	s.t.Helper()
	relay := &v1alpha1.OutboxRelay{}
	if !s.get(name, relay) {
		s.t.Fatalf("no relay %s", name)
	}
	before := relay.DeepCopy()
	change(&relay.Spec)
	if err := s.admin.Patch(s.t.Context(), relay, client.MergeFrom(before)); err != nil {
		s.t.Fatal(err)
	}
}

// condition waits until a relay's condition is as it should be, for its newest generation.
func (s *space) condition(name, kind string, status metav1.ConditionStatus, reason string) *v1alpha1.OutboxRelay {
	s.t.Helper()
	relay := &v1alpha1.OutboxRelay{}
	eventually(s.t, fmt.Sprintf("%s %s %s", kind, status, reason), func() string {
		if !s.get(name, relay) {
			return "no relay"
		}
		c := meta.FindStatusCondition(relay.Status.Conditions, kind)
		if c == nil || c.Status != status || c.Reason != reason || c.ObservedGeneration != relay.Generation {
			return fmt.Sprintf("conditions of generation %d: %s", relay.Generation, conditions(relay.Status.Conditions))
		}
		return ""
	})
	return relay
}

// ready waits until a relay is ready.
func (s *space) ready(name string) *v1alpha1.OutboxRelay {
	s.t.Helper()
	return s.condition(name, v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
}

func conditions(all []metav1.Condition) string {
	var words []string
	for _, c := range all {
		words = append(
			words,
			fmt.Sprintf("%s=%s/%s@%d (%s)", c.Type, c.Status, c.Reason, c.ObservedGeneration, c.Message),
		)
	}
	return strings.Join(words, ", ")
}
