package controller

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/postrider/postrider/internal/desired"
	"github.com/postrider/postrider/internal/status"
)

// facts gathers what the status depends on besides the reports.
func (r *reconciler[R, S]) facts(resource R, seen *observed, l *looked[S], stepErr error) status.Facts {
	f := status.Facts{
		Generation: resource.GetGeneration(),
		Replicas:   wantedReplicas(seen, r.kind.parts(resource).replicas),
		Running:    new(int32),
		Selector:   labels.SelectorFromSet(seen.selector).String(),
		Interval:   l.interval,
		Rollout:    rollout(seen),
		Waiting:    waiting(seen.pods),
		Stale:      l.stale,
		Now:        metav1.NewTime(l.now).Rfc3339Copy().Time,
	}
	if d := seen.deployment; d != nil {
		f.Ready, *f.Running = d.Status.ReadyReplicas, d.Status.Replicas
	}
	for _, pod := range seen.pods {
		if isReady(pod) && !l.reported[pod.UID] {
			f.Silent++
		}
	}
	if since := l.memory.slowSince; !since.IsZero() {
		f.SlowFor = l.now.Sub(since)
	}
	tell(&f, stepErr)
	return f
}

// wantedReplicas is the resource's number, or that of whoever scales.
func wantedReplicas(seen *observed, replicas *int32) int32 {
	switch {
	case replicas != nil:
		return *replicas
	case seen.deployment != nil && seen.deployment.Spec.Replicas != nil:
		return *seen.deployment.Spec.Replicas
	default:
		return desired.DefaultReplicas
	}
}

// rollout says what of the Deployment is still under way.
func rollout(seen *observed) string {
	d := seen.deployment
	switch {
	case d == nil:
		return "The workers are being made"
	case seen.rolling || d.Status.ObservedGeneration < d.Generation:
		return "A change of the workers was just begun"
	}
	var wanted int32 = 1
	if d.Spec.Replicas != nil {
		wanted = *d.Spec.Replicas
	}
	switch s := d.Status; {
	case s.UpdatedReplicas < wanted:
		return fmt.Sprintf("%d of %d workers are as they should be", s.UpdatedReplicas, wanted)
	case s.Replicas > s.UpdatedReplicas:
		return fmt.Sprintf("%d earlier workers are still there", s.Replicas-s.UpdatedReplicas)
	case s.AvailableReplicas < wanted && starting(s.Conditions):
		return fmt.Sprintf("%d of %d workers have started", s.AvailableReplicas, wanted)
	default:
		return ""
	}
}

// starting says whether the Pods of the newest template have not all been ready yet. Later ones that are not ready are
// no change under way, and neither is a change that has made no progress for long.
func starting(conditions []appsv1.DeploymentCondition) bool {
	for _, c := range conditions {
		if c.Type == appsv1.DeploymentProgressing {
			return c.Status == corev1.ConditionTrue && c.Reason != "NewReplicaSetAvailable"
		}
	}
	return false
}

// waiting says why a Pod does not start, in words of ours: what a container runtime says may hold anything.
func waiting(pods []*corev1.Pod) string {
	for _, pod := range pods {
		if isReady(pod) {
			continue
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse &&
				c.Reason == corev1.PodReasonUnschedulable {
				return "no node can take Pod " + pod.Name
			}
		}
		for _, containers := range [][]corev1.ContainerStatus{
			pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		} {
			for i := range containers {
				if trouble := containerTrouble(&containers[i]); trouble != "" {
					return "Pod " + pod.Name + ": " + trouble
				}
			}
		}
	}
	return ""
}

// containerTrouble says one thing for states that come by turns, so that a status does not flutter with them.
func containerTrouble(c *corev1.ContainerStatus) string {
	ended := c.LastTerminationState.Terminated
	if now := c.State.Terminated; now != nil {
		ended = now
	}
	if w := c.State.Waiting; w != nil {
		switch w.Reason {
		case "", "PodInitializing", "ContainerCreating", "CrashLoopBackOff":
		case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull":
			return "its image cannot be pulled"
		default:
			return "container " + c.Name + " cannot start: " + word(w.Reason)
		}
	}
	if ended == nil || c.RestartCount == 0 || (ended.ExitCode == 0 && c.State.Terminated != nil) {
		return ""
	}
	return fmt.Sprintf("container %s keeps ending: %s, exit code %d", c.Name, word(ended.Reason), ended.ExitCode)
}

// word keeps a reason only if it is one.
func word(reason string) string {
	if len(reason) > maxReason || !reasonForm.MatchString(reason) {
		return "for no known reason"
	}
	return reason
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
