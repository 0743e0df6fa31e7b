package controller

import (
	"errors"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/status"
)

func TestErrorsAreMappedInOnePlace(t *testing.T) {
	t.Parallel()
	const next = 15 * time.Second
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	cases := map[string]struct {
		err     error
		requeue time.Duration
		failed  bool
		stalled string
		reason  string // of Failed
		rollout bool
	}{
		"done": {nil, next, false, "", "", false},
		"something comes first": {
			fmt.Errorf("x: %w", &waitError{message: "wait", after: time.Second}),
			time.Second,
			false,
			"",
			"",
			true,
		},
		"a person must act": {
			&invalidError{reason: v1alpha1.ReasonInvalidSpec, message: "x"},
			next,
			false,
			"InvalidSpec",
			"",
			false,
		},
		"Kubernetes refuses a field that it defines": {
			fmt.Errorf("apply Deployment: %w", apierrors.NewInvalid(
				appsv1.SchemeGroupVersion.WithKind("Deployment").GroupKind(), "x", nil,
			)),
			next,
			false,
			"InvalidSpec",
			"",
			false,
		},
		"a name is taken": {
			&conflictError{objects: []string{"Deployment x"}},
			next,
			false,
			"NameConflict",
			"",
			false,
		},
		"the cache lags": {
			fmt.Errorf("x: %w", apierrors.NewConflict(deployments, "x", errors.New("y"))),
			0,
			true,
			"",
			"",
			false,
		},
		"an object has gone": {apierrors.NewNotFound(deployments, "x"), 0, true, "", "", false},
		"the API server is busy": {
			apierrors.NewTooManyRequests("busy", 1),
			0,
			true,
			"",
			v1alpha1.ReasonReconcileError,
			false,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			result, err := resultFor(tc.err, next)
			if result.RequeueAfter != tc.requeue || (err != nil) != tc.failed {
				t.Errorf("resultFor() = %v, %v, want %v, error %v", result, err, tc.requeue, tc.failed)
			}
			var f status.Facts
			tell(&f, tc.err)
			var stalled, failed string
			if f.Stalled != nil {
				stalled = f.Stalled.Reason
			}
			if f.Failed != nil {
				failed = f.Failed.Reason
			}
			if stalled != tc.stalled || failed != tc.reason || (f.Rollout != "") != tc.rollout {
				t.Errorf("facts = %+v, want stalled %q, failed %q", f, tc.stalled, tc.reason)
			}
		})
	}
}

func pod(name string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if change != nil {
		change(p)
	}
	return p
}

func container(state corev1.ContainerState, last *corev1.ContainerStateTerminated, restarts int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: "worker", State: state, RestartCount: restarts,
			LastTerminationState: corev1.ContainerState{Terminated: last},
		}}
	}
}

func waits(reason string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "secret-canary"}}
}

func TestWhyAPodWaits(t *testing.T) {
	t.Parallel()
	killed := &corev1.ContainerStateTerminated{Reason: "OOMKilled", ExitCode: 137, Message: "secret-canary"}
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
	const keeps = "Pod a: container worker keeps ending: OOMKilled, exit code 137"
	cases := map[string]struct {
		change func(*corev1.Pod)
		want   string
	}{
		"it is made":            {container(waits("ContainerCreating"), nil, 0), ""},
		"its step runs":         {container(waits("PodInitializing"), nil, 0), ""},
		"it runs":               {container(running, nil, 0), ""},
		"an image is not there": {container(waits("ErrImagePull"), nil, 0), "Pod a: its image cannot be pulled"},
		"and it waits to try again": {
			container(waits("ImagePullBackOff"), nil, 0),
			"Pod a: its image cannot be pulled",
		},
		"it has ended and waits": {container(waits("CrashLoopBackOff"), killed, 3), keeps},
		"it runs again":          {container(running, killed, 3), keeps},
		"it has just ended":      {container(corev1.ContainerState{Terminated: killed}, killed, 3), keeps},
		"a config is wrong": {
			container(waits("CreateContainerConfigError"), nil, 0),
			"Pod a: container worker cannot start: CreateContainerConfigError",
		},
		"a reason that is none": {
			container(waits("a b"), nil, 0),
			"Pod a: container worker cannot start: for no known reason",
		},
		"no node takes it": {func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			}}
		}, "no node can take Pod a"},
		"it is ready, whatever was": {func(p *corev1.Pod) {
			container(running, killed, 3)(p)
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := waiting([]*corev1.Pod{pod("a", tc.change)}); got != tc.want {
				t.Errorf("waiting() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestRollout(t *testing.T) {
	t.Parallel()
	two := int32(2)
	deployment := func(status appsv1.DeploymentStatus) *appsv1.Deployment {
		return &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Generation: 7}, Spec: appsv1.DeploymentSpec{Replicas: &two}, Status: status,
		}
	}
	progressing := func(reason string) appsv1.DeploymentStatus {
		truth := corev1.ConditionTrue
		if reason == "ProgressDeadlineExceeded" {
			truth = corev1.ConditionFalse
		}
		return appsv1.DeploymentStatus{
			ObservedGeneration: 7, Replicas: 2, UpdatedReplicas: 2, AvailableReplicas: 1,
			Conditions: []appsv1.DeploymentCondition{{
				Type: appsv1.DeploymentProgressing, Status: truth, Reason: reason,
			}},
		}
	}
	done := appsv1.DeploymentStatus{ObservedGeneration: 7, Replicas: 2, UpdatedReplicas: 2, ReadyReplicas: 2}
	cases := map[string]struct {
		seen observed
		want string
	}{
		"nothing is there": {observed{}, "The workers are being made"},
		"all is done":      {observed{deployment: deployment(done)}, ""},
		"this pass began it": {
			observed{deployment: deployment(done), rolling: true},
			"A change of the workers was just begun",
		},
		"the controller has not seen it": {observed{deployment: deployment(appsv1.DeploymentStatus{
			ObservedGeneration: 6, Replicas: 2, UpdatedReplicas: 2,
		})}, "A change of the workers was just begun"},
		"one is new": {observed{deployment: deployment(appsv1.DeploymentStatus{
			ObservedGeneration: 7, Replicas: 3, UpdatedReplicas: 1,
		})}, "1 of 2 workers are as they should be"},
		"the new ones are not ready yet": {
			observed{deployment: deployment(progressing("ReplicaSetUpdated"))},
			"1 of 2 workers have started",
		},
		"one that was ready is so no more": {
			observed{deployment: deployment(progressing("NewReplicaSetAvailable"))},
			"",
		},
		"the controller has given up": {
			observed{deployment: deployment(progressing("ProgressDeadlineExceeded"))},
			"",
		},
		"an old one is left": {observed{deployment: deployment(appsv1.DeploymentStatus{
			ObservedGeneration: 7, Replicas: 3, UpdatedReplicas: 2,
		})}, "1 earlier workers are still there"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := rollout(&tc.seen); got != tc.want {
				t.Errorf("rollout() = %q, want %q", got, tc.want)
			}
		})
	}
}

func TestPermit(t *testing.T) {
	t.Parallel()
	plain := []string{"spec.source.postgres.tls"}
	classes := &v1alpha1.Workload{PriorityClassName: "high"}
	cases := map[string]struct {
		options  Options
		insecure []string
		workload *v1alpha1.Workload
		reason   string
	}{
		"encrypted":                  {Options{}, nil, &v1alpha1.Workload{}, ""},
		"plain text":                 {Options{}, plain, &v1alpha1.Workload{}, "InsecureTransportNotAllowed"},
		"plain text that is allowed": {Options{AllowInsecureTransport: true}, plain, &v1alpha1.Workload{}, ""},
		"a priority class": {
			Options{PriorityClasses: []string{"low"}},
			nil,
			classes,
			"PriorityClassNotAllowed",
		},
		"a priority class that is allowed": {Options{PriorityClasses: []string{"low", "high"}}, nil, classes, ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.options.permit(tc.insecure, tc.workload)
			var invalid *invalidError
			if errors.As(err, &invalid) != (tc.reason != "") || (invalid != nil && invalid.reason != tc.reason) {
				t.Errorf("permit() = %v, want reason %q", err, tc.reason)
			}
		})
	}
}
