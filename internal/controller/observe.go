package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// predecessorWait is how long to wait for the garbage collector to take what an earlier resource of the name left.
const predecessorWait = 5 * time.Second

// observed is what a pass found of a resource. An object that is not there is nil.
type observed struct {
	serviceAccount *corev1.ServiceAccount
	configMap      *corev1.ConfigMap
	budget         *policyv1.PodDisruptionBudget
	network        *networkingv1.NetworkPolicy
	deployment     *appsv1.Deployment
	// pods are those of the Deployment that are not being deleted, by name.
	pods []*corev1.Pod
	// selector selects the Pods.
	selector map[string]string
	// rolling says that this pass changed the Deployment, whose status is therefore old.
	rolling bool
}

// observe reads the objects of a resource. Objects that are not its own are an error, and nothing is known of them.
func (r *reconciler[R, S]) observe(ctx context.Context, resource R) (*observed, error) {
	of := r.kind.parts(resource)
	seen := &observed{selector: of.selector}
	children := childReader{client: r.client, live: r.live, owner: resource, name: of.objects}
	seen.serviceAccount = read(ctx, &children, &corev1.ServiceAccount{})
	seen.configMap = read(ctx, &children, &corev1.ConfigMap{})
	seen.budget = read(ctx, &children, &policyv1.PodDisruptionBudget{})
	if r.Settings.OperatorNamespace != "" {
		seen.network = read(ctx, &children, &networkingv1.NetworkPolicy{})
	}
	seen.deployment = read(ctx, &children, &appsv1.Deployment{})
	if children.err == nil && seen.deployment != nil {
		seen.pods, children.err = r.ownPods(ctx, seen.deployment, of.selector)
	}
	switch {
	case children.err != nil:
		return seen, children.err
	case len(children.foreign) > 0:
		return seen, &conflictError{objects: children.foreign}
	case children.predecessor:
		return seen, &waitError{
			message: "Objects of a deleted resource of this name are still being removed", after: predecessorWait,
		}
	}
	return seen, nil
}

// childReader reads the objects of one resource, which all have one name.
type childReader struct {
	client, live client.Reader
	owner        client.Object
	name         string

	err         error
	foreign     []string
	predecessor bool
}

// read returns an object, or nil where there is none of the owner's.
func read[O client.Object](ctx context.Context, r *childReader, into O) O {
	var none O
	if r.err != nil {
		return none
	}
	key := client.ObjectKey{Namespace: r.owner.GetNamespace(), Name: r.name}
	err := r.client.Get(ctx, key, into)
	if apierrors.IsNotFound(err) {
		// The cache holds only what has our label: an object of somebody else shows here.
		err = r.live.Get(ctx, key, into)
	}
	switch by := metav1.GetControllerOf(into); {
	case apierrors.IsNotFound(err):
		return none
	case err != nil:
		r.err = fmt.Errorf("read %s %s: %w", kindOf(into), r.name, err)
		return none
	case metav1.IsControlledBy(into, r.owner):
		return into
	case by != nil && by.Name == r.owner.GetName() && by.Kind == kindOf(r.owner):
		r.predecessor = true
	default:
		r.foreign = append(r.foreign, kindOf(into)+" "+r.name)
	}
	return none
}

// kindOf names the kind of a typed object.
func kindOf(o client.Object) string {
	name := fmt.Sprintf("%T", o)
	return name[strings.LastIndexByte(name, '.')+1:]
}

// ownPods returns the Pods whose controller is a ReplicaSet whose controller is the Deployment. Labels prove nothing:
// anybody who makes a Pod chooses them.
func (r *reconciler[R, S]) ownPods(
	ctx context.Context, d *appsv1.Deployment, selector map[string]string,
) ([]*corev1.Pod, error) {
	in := []client.ListOption{client.InNamespace(d.Namespace), client.MatchingLabels(selector)}
	var sets appsv1.ReplicaSetList
	if err := r.client.List(ctx, &sets, in...); err != nil {
		return nil, fmt.Errorf("list ReplicaSets: %w", err)
	}
	own := make(map[types.UID]bool)
	for i := range sets.Items {
		if metav1.IsControlledBy(&sets.Items[i], d) {
			own[sets.Items[i].UID] = true
		}
	}
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, in...); err != nil {
		return nil, fmt.Errorf("list Pods: %w", err)
	}
	var found []*corev1.Pod
	for i := range pods.Items {
		pod := &pods.Items[i]
		if by := metav1.GetControllerOf(pod); by != nil && own[by.UID] && pod.DeletionTimestamp.IsZero() {
			found = append(found, pod)
		}
	}
	slices.SortFunc(found, func(a, b *corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return found, nil
}
