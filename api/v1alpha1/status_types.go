package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// WorkerStatus is the part of a status that both kinds share.
type WorkerStatus struct {
	// conditions say what works and what does not. Ready sums them up.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=32
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// observedGeneration is the generation of the spec that this status was computed from.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// replicas is the number of Pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	Replicas *int32 `json:"replicas,omitempty"`

	// readyReplicas is the number of Pods that are ready.
	// +optional
	// +kubebuilder:validation:Minimum=0
	ReadyReplicas *int32 `json:"readyReplicas,omitempty"`

	// selector selects the Pods, as text, for the scale subresource.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Selector string `json:"selector,omitempty"`

	// observedTime is when the numbers of this status were taken; it moves only with another change of status.
	// +optional
	ObservedTime *metav1.Time `json:"observedTime,omitempty"`
}

// DeadLetterCount counts messages that were set aside with a reason and wait for a person.
type DeadLetterCount struct {
	// open is the number of open dead letters.
	// +required
	// +kubebuilder:validation:Minimum=0
	Open *int64 `json:"open,omitempty"`

	// oldestTime is when the oldest of them failed last. Absent without any.
	// +optional
	OldestTime *metav1.Time `json:"oldestTime,omitempty"`
}
