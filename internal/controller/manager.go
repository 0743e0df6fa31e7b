package controller

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
)

// Scheme returns a scheme with every kind that the operator reads or writes.
func Scheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, policyv1.AddToScheme, networkingv1.AddToScheme,
		coordinationv1.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("register kinds: %w", err)
		}
	}
	return scheme, nil
}

// CacheOptions list every kind that is cached, in some namespaces or in all. Of the built-in ones only what was made for
// a resource is kept: the cluster's other Pods and ConfigMaps are none of ours. Secrets are never read.
func CacheOptions(namespaces []string) cache.Options {
	ours := labels.SelectorFromSet(labels.Set{desired.LabelManagedBy: desired.ManagedBy})
	o := cache.Options{
		ReaderFailOnMissingInformer: true, // a read of any other kind is a mistake and starts no watch
		ByObject: map[client.Object]cache.ByObject{
			&appsv1.Deployment{}:            {Label: ours},
			&appsv1.ReplicaSet{}:            {Label: ours, Transform: cache.TransformStripManagedFields()},
			&corev1.ConfigMap{}:             {Label: ours},
			&corev1.Pod{}:                   {Label: ours, Transform: cache.TransformStripManagedFields()},
			&corev1.ServiceAccount{}:        {Label: ours},
			&networkingv1.NetworkPolicy{}:   {Label: ours},
			&policyv1.PodDisruptionBudget{}: {Label: ours},
		},
	}
	for _, namespace := range namespaces {
		if o.DefaultNamespaces == nil {
			o.DefaultNamespaces = make(map[string]cache.Config)
		}
		o.DefaultNamespaces[namespace] = cache.Config{}
	}
	return o
}
