package controller

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/status"
)

// kind is what the kinds of resources do not share. R is a resource of the kind, S its status.
type kind[R client.Object, S any] struct {
	name string
	// label names the resource on its Pods.
	label    string
	empty    func() R
	parts    func(R) parts[S]
	workload func(R, desired.Settings) (desired.Workload, error)
	rules    status.Kind[S]
}

// parts are those of a resource that a pass works with.
type parts[S any] struct {
	// objects is the name of every object that is made for it, selector selects its Pods.
	objects  string
	selector map[string]string
	// insecure are the fields that ask for plain text.
	insecure []string
	replicas *int32
	interval v1alpha1.Duration
	workload *v1alpha1.Workload
	// status is the resource's own, common the part of it that all kinds have: a change of them is one of the resource.
	status *S
	common *v1alpha1.WorkerStatus
}

func relays() kind[*v1alpha1.OutboxRelay, v1alpha1.OutboxRelayStatus] {
	return kind[*v1alpha1.OutboxRelay, v1alpha1.OutboxRelayStatus]{
		name: v1alpha1.KindOutboxRelay, label: desired.LabelRelay,
		empty:    func() *v1alpha1.OutboxRelay { return &v1alpha1.OutboxRelay{} },
		workload: desired.RelayWorkload, rules: status.Relays(),
		parts: func(r *v1alpha1.OutboxRelay) parts[v1alpha1.OutboxRelayStatus] {
			return parts[v1alpha1.OutboxRelayStatus]{
				objects: desired.RelayName(r.Name), selector: desired.RelaySelector(r.Name),
				insecure: desired.InsecureTransports(r), replicas: r.Spec.Replicas,
				interval: r.Spec.StatusInterval, workload: &r.Spec.Workload,
				status: &r.Status, common: &r.Status.WorkerStatus,
			}
		},
	}
}

func consumers() kind[*v1alpha1.InboxConsumer, v1alpha1.InboxConsumerStatus] {
	return kind[*v1alpha1.InboxConsumer, v1alpha1.InboxConsumerStatus]{
		name: v1alpha1.KindInboxConsumer, label: desired.LabelConsumer,
		empty:    func() *v1alpha1.InboxConsumer { return &v1alpha1.InboxConsumer{} },
		workload: desired.ConsumerWorkload, rules: status.Consumers(),
		parts: func(c *v1alpha1.InboxConsumer) parts[v1alpha1.InboxConsumerStatus] {
			return parts[v1alpha1.InboxConsumerStatus]{
				objects: desired.ConsumerName(c.Name), selector: desired.ConsumerSelector(c.Name),
				insecure: desired.InsecureConsumerTransports(c), replicas: c.Spec.Replicas,
				interval: c.Spec.StatusInterval, workload: &c.Spec.Workload,
				status: &c.Status, common: &c.Status.WorkerStatus,
			}
		},
	}
}
