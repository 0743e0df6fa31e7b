package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// RunPolicy says whether a worker moves messages.
// +kubebuilder:validation:Enum=Run;Pause;Drain
type RunPolicy string

// The run policies.
const (
	// RunPolicyRun moves messages.
	RunPolicyRun RunPolicy = "Run"
	// RunPolicyPause keeps leases and connections and moves nothing.
	RunPolicyPause RunPolicy = "Pause"
	// RunPolicyDrain finishes what is in hand, gives everything back and stops.
	RunPolicyDrain RunPolicy = "Drain"
)

// OrderingMode says whether messages of one ordering key keep their order.
// +kubebuilder:validation:Enum=PerKey;None
type OrderingMode string

// The ordering modes.
const (
	// OrderingPerKey keeps the order of each key.
	OrderingPerKey OrderingMode = "PerKey"
	// OrderingNone keeps no order; a failing message holds up no other.
	OrderingNone OrderingMode = "None"
)

// RetryBudget bounds the pauses between the tries of one message.
// +kubebuilder:validation:XValidation:rule="!has(self.initialBackoff) || !has(self.maxBackoff) || duration(self.initialBackoff) <= duration(self.maxBackoff)",fieldPath=".initialBackoff",message="initialBackoff must not be longer than maxBackoff"
type RetryBudget struct {
	// initialBackoff is the longest pause before the second try, 10ms to 24h; each further pause may last twice as
	// long, up to maxBackoff, and every one is drawn at random below its bound. A change is taken over live.
	// Defaults to 500ms.
	// +optional
	// +kubebuilder:default="500ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('24h')",message="must be 10ms to 24h"
	InitialBackoff Duration `json:"initialBackoff,omitempty"`

	// maxBackoff is the longest pause between two tries, initialBackoff to 24h. A change is taken over live.
	// Defaults to 2m.
	// +optional
	// +kubebuilder:default="2m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10ms') && duration(self) <= duration('24h')",message="must be 10ms to 24h"
	MaxBackoff Duration `json:"maxBackoff,omitempty"`
}

// Workload says where and how the worker Pods run. Image, command, security settings and volumes are the operator's
// alone. A change of any field rolls the Pods.
type Workload struct {
	// resources are the CPU, memory and ephemeral storage of the worker's container. What is unset is chosen by the
	// operator.
	// +optional
	Resources Resources `json:"resources,omitzero"`

	// nodeSelector lists the labels a node must have, at most 32.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="each key must be a label name, such as disk or example.com/disk"
	NodeSelector map[string]LabelValue `json:"nodeSelector,omitempty"`

	// tolerations let the Pods run on tainted nodes, at most 32.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	// +listType=atomic
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// affinity says which nodes and neighbours the Pods want or avoid. Unset, replicas avoid sharing a node where
	// they can.
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// topologySpreadConstraints say how the Pods spread over zones or nodes, at most 16. A constraint without a
	// labelSelector counts this resource's Pods.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=topologyKey
	// +listMapKey=whenUnsatisfiable
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// priorityClassName is the Pods' priority class; the operator accepts only those it was told to.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!format.dns1123Subdomain().validate(self).hasValue()",message="must be the name of a PriorityClass"
	PriorityClassName string `json:"priorityClassName,omitempty"`

	// labels are added to the Pods, at most 32; selectors never use them. Keys of kubernetes.io, k8s.io and
	// postrider.dev are refused.
	// +optional
	// +kubebuilder:validation:MaxProperties=32
	// +kubebuilder:validation:XValidation:rule="self.all(k, !k.matches('^([^/]*[.])?(kubernetes[.]io|k8s[.]io|postrider[.]dev)/'))",message="keys of kubernetes.io, k8s.io and postrider.dev are the operator's: use a prefix of your own"
	// +kubebuilder:validation:XValidation:rule="self.all(k, !format.qualifiedName().validate(k).hasValue())",message="each key must be a label name, such as team or example.com/team"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// imagePullSecrets name the Secrets used to pull the operator's image, at most 16.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +listType=map
	// +listMapKey=name
	ImagePullSecrets []SecretReference `json:"imagePullSecrets,omitempty"`
}

// LabelValue is the value of a label, at most 63 bytes.
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:XValidation:rule="!format.labelValue().validate(self).hasValue()",message="must be a label value: letters, digits, - _ and ., with a letter or digit at both ends"
type LabelValue string

// Resources are what a container asks for and may use at most.
// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || self.requests.all(k, !(k in self.limits) || quantity(string(self.requests[k])).compareTo(quantity(string(self.limits[k]))) <= 0)",fieldPath=".requests",message="must not exceed limits: no container is given more than it can use"
type Resources struct {
	// requests are what the container is given for sure: cpu, memory, ephemeral-storage.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="must name only cpu, memory and ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="self.all(k, quantity(string(self[k])).compareTo(quantity('0')) >= 0)",message="must not be negative"
	Requests corev1.ResourceList `json:"requests,omitempty"`

	// limits are what the container can use at most: cpu, memory, ephemeral-storage. 0 is no limit; nothing is requested
	// then.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="must name only cpu, memory and ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="self.all(k, quantity(string(self[k])).compareTo(quantity('0')) >= 0)",message="must not be negative"
	Limits corev1.ResourceList `json:"limits,omitempty"`
}
