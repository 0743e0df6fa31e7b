package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kinds of this group.
const (
	// KindOutboxRelay is the kind of a relay.
	KindOutboxRelay = "OutboxRelay"
	// KindInboxConsumer is the kind of a consumer.
	KindInboxConsumer = "InboxConsumer"
)

// GroupVersion is the group and version of these types.
var GroupVersion = schema.GroupVersion{Group: "postrider.dev", Version: "v1alpha1"}

// SchemeBuilder collects the functions that add this group to a scheme.
var SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

// AddToScheme adds the types of this group to a scheme.
var AddToScheme = SchemeBuilder.AddToScheme

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &OutboxRelay{}, &OutboxRelayList{}, &InboxConsumer{}, &InboxConsumerList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
