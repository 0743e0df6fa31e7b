package desired

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
)

// maxConfigBytes leaves room in a ConfigMap, which holds a mebibyte of data.
const maxConfigBytes = config.MaxFileBytes - 4<<10

// Labels of every object that is made for a resource. Selectors are constants and the resource's name, never a label
// of a user and never a version.
const (
	// LabelManagedBy is ManagedBy on everything of ours.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy.
	ManagedBy = "postrider"
	// LabelRelay names the OutboxRelay that an object was made for.
	LabelRelay = "postrider.dev/outboxrelay"
	// LabelConsumer names the InboxConsumer that an object was made for.
	LabelConsumer = "postrider.dev/inboxconsumer"

	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
)

// AnnotationTables stands, on a Pod template, for the tables that the step before the worker makes: another place for
// them rolls the Pods, so that the step runs there too.
const AnnotationTables = "postrider.dev/tables"

// Settings are what the operator decides for all workers.
type Settings struct {
	// Image holds every command. Nothing of a resource says which image runs.
	Image string
	// OperatorNamespace is where the operator's Pods are. They alone, and namespaces labelled LabelMetrics, reach the
	// workers; empty, no NetworkPolicy is made.
	OperatorNamespace string
}

// Workload is what runs a resource, to be applied in the order of its fields.
type Workload struct {
	ServiceAccount      *corev1ac.ServiceAccountApplyConfiguration
	ConfigMap           *corev1ac.ConfigMapApplyConfiguration
	PodDisruptionBudget *policyv1ac.PodDisruptionBudgetApplyConfiguration
	// NetworkPolicy is nil where Settings name no OperatorNamespace.
	NetworkPolicy *networkingv1ac.NetworkPolicyApplyConfiguration
	// Deployment names replicas only where the resource does.
	Deployment *appsv1ac.DeploymentApplyConfiguration
}

// RelayName is the name of every object that is made for a relay.
func RelayName(relay string) string { return relay + "-relay" }

// ConsumerName is the name of every object that is made for a consumer.
func ConsumerName(consumer string) string { return consumer + "-consumer" }

// RelaySelector selects the Pods of a relay.
func RelaySelector(relay string) map[string]string {
	return map[string]string{LabelManagedBy: ManagedBy, LabelRelay: relay}
}

// ConsumerSelector selects the Pods of a consumer.
func ConsumerSelector(consumer string) map[string]string {
	return map[string]string{LabelManagedBy: ManagedBy, LabelConsumer: consumer}
}

// RelayWorkload returns what runs a relay. It fails as Relay does.
func RelayWorkload(relay *v1alpha1.OutboxRelay, s Settings) (Workload, error) {
	in := Inputs{Root: Root}
	cfg, err := Relay(relay, in)
	if err != nil {
		return Workload{}, err
	}
	spec := &relay.Spec
	b := builder{
		owner: relay, kind: v1alpha1.KindOutboxRelay, name: RelayName(relay.Name), command: "relay", settings: s,
		selector: RelaySelector(relay.Name), replicas: spec.Replicas, workload: &spec.Workload,
		references: RelayReferences(relay), memory: relayMemory(cfg),
	}
	if _, managed := RelayMigration(relay, in); managed {
		b.migration = &migrationStep{
			component: "outbox",
			tables:    tables(cfg.Source, cfg.Outbox.Table, cfg.Batch.WakeUp),
		}
	}
	return b.build(cfg)
}

// ConsumerWorkload returns what runs a consumer. It fails as Consumer does.
func ConsumerWorkload(consumer *v1alpha1.InboxConsumer, s Settings) (Workload, error) {
	in := Inputs{Root: Root}
	cfg, err := Consumer(consumer, in)
	if err != nil {
		return Workload{}, err
	}
	spec := &consumer.Spec
	b := builder{
		owner: consumer, kind: v1alpha1.KindInboxConsumer, name: ConsumerName(consumer.Name), command: "consumer",
		settings: s, selector: ConsumerSelector(consumer.Name), replicas: spec.Replicas, workload: &spec.Workload,
		references: ConsumerReferences(consumer), memory: consumerMemory(cfg),
	}
	if _, managed := ConsumerMigration(consumer, in); managed {
		b.migration = &migrationStep{component: "inbox", tables: tables(cfg.Inbox.Postgres, "", "")}
	}
	return b.build(cfg)
}

// Replicas returns the part of a Deployment that says nothing but its replicas.
func Replicas(namespace, name string, n int32) *appsv1ac.DeploymentApplyConfiguration {
	return appsv1ac.Deployment(name, namespace).WithSpec(appsv1ac.DeploymentSpec().WithReplicas(n))
}

// builder makes the objects of one resource.
type builder struct {
	owner      metav1.Object
	kind       string
	name       string
	command    string
	settings   Settings
	selector   map[string]string
	replicas   *int32
	workload   *v1alpha1.Workload
	references []Reference
	migration  *migrationStep
	memory     int64
}

// migrationStep makes the tables before the worker starts.
type migrationStep struct {
	component string
	tables    string
}

// tables stands for the place of a resource's tables.
func tables(p config.Postgres, outbox, wakeUp string) string {
	parts := []any{p.Hosts, p.Port, p.Database, p.Schema, outbox}
	if wakeUp != "" {
		parts = append(parts, wakeUp) // the tables then have a trigger
	}
	place, _ := json.Marshal(parts) // texts and a number: cannot fail
	sum := sha256.Sum256(place)
	return hex.EncodeToString(sum[:8])
}

func (b builder) build(cfg any) (Workload, error) {
	file, err := encode(cfg)
	if err != nil {
		return Workload{}, err
	}
	pod, err := b.podTemplate()
	if err != nil {
		return Workload{}, err
	}
	deployment := appsv1ac.DeploymentSpec().
		WithSelector(metav1ac.LabelSelector().WithMatchLabels(b.selector)).
		WithStrategy(rollingUpdate()).
		WithTemplate(pod)
	if b.replicas != nil {
		deployment.WithReplicas(*b.replicas)
	}
	namespace := b.owner.GetNamespace()
	return Workload{
		ServiceAccount: corev1ac.ServiceAccount(b.name, namespace).
			WithLabels(b.labels()).WithOwnerReferences(b.ownedBy()).
			WithAutomountServiceAccountToken(false),
		ConfigMap: corev1ac.ConfigMap(b.name, namespace).
			WithLabels(b.labels()).WithOwnerReferences(b.ownedBy()).
			WithData(map[string]string{ConfigFile: file}),
		// A Pod that is not ready keeps no node from being drained: it does nothing that an eviction could harm.
		PodDisruptionBudget: policyv1ac.PodDisruptionBudget(b.name, namespace).
			WithLabels(b.labels()).WithOwnerReferences(b.ownedBy()).
			WithSpec(policyv1ac.PodDisruptionBudgetSpec().
				WithMaxUnavailable(intstr.FromInt32(1)).
				WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow).
				WithSelector(metav1ac.LabelSelector().WithMatchLabels(b.selector))),
		NetworkPolicy: b.networkPolicy(),
		Deployment: appsv1ac.Deployment(b.name, namespace).
			WithLabels(b.labels()).WithOwnerReferences(b.ownedBy()).
			WithSpec(deployment),
	}, nil
}

// rollingUpdate takes no Pod away before its successor is ready: a step or an image that fails stops nothing.
func rollingUpdate() *appsv1ac.DeploymentStrategyApplyConfiguration {
	return appsv1ac.DeploymentStrategy().
		WithType("RollingUpdate").
		WithRollingUpdate(appsv1ac.RollingUpdateDeployment().
			WithMaxUnavailable(intstr.FromInt32(0)).
			WithMaxSurge(intstr.FromString("25%")))
}

// labels are those of the objects; a Pod has the user's besides.
func (b builder) labels() map[string]string {
	all := map[string]string{labelName: ManagedBy, labelComponent: b.command}
	maps.Copy(all, b.selector)
	return all
}

func (b builder) ownedBy() *metav1ac.OwnerReferenceApplyConfiguration {
	return metav1ac.OwnerReference().
		WithAPIVersion(v1alpha1.GroupVersion.String()).
		WithKind(b.kind).
		WithName(b.owner.GetName()).
		WithUID(b.owner.GetUID()).
		WithController(true).
		WithBlockOwnerDeletion(true)
}

// encode writes a configuration for a person to read as well.
func encode(cfg any) (string, error) {
	var file bytes.Buffer
	e := json.NewEncoder(&file)
	e.SetEscapeHTML(false) // statements are full of < and >
	e.SetIndent("", "  ")
	if err := e.Encode(cfg); err != nil {
		return "", fmt.Errorf("encode the configuration: %w", err)
	}
	if file.Len() > maxConfigBytes {
		return "", fmt.Errorf(
			"the configuration has %d bytes, more than a ConfigMap holds: shorten the statements",
			file.Len(),
		)
	}
	return file.String(), nil
}
