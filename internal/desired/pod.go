package desired

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
)

// StatusPort is where a worker answers /statusz, probes and /metrics. It is the operator's choice, never a user's.
const StatusPort = 8080

// DrainTime is how long a worker may take to finish and release after SIGTERM.
const DrainTime = 25 * time.Second

const (
	// killMargin is what a Pod is given beyond DrainTime.
	killMargin = 5 * time.Second
	// binaries is where the image has the commands.
	binaries = "/usr/local/bin/"
	// containerName is the worker's, stepName that of the step before it.
	containerName, stepName = "worker", "schema"
	// fileMode lets any user of the container read: which one it is, the cluster may choose.
	fileMode = 0o444

	configVolume = "config"
)

// What a container is given where the resource does not say.
const (
	defaultCPURequest = "50m"
	defaultCPULimit   = "2"
	memoryRequest     = 64 << 20
	// baseMemory is what a worker needs without messages.
	baseMemory = 96 << 20
	// copiesOfBatch is how often the bytes of a batch may be in memory: as read, as encoded, as sent.
	copiesOfBatch = 3
	// consumerBatchBytes is what a consumer's lane is taken to hold at a time.
	consumerBatchBytes = 16 << 20
	maxDefaultMemory   = 4 << 30
	// goMemoryPercent of the limit is where the Go runtime begins to collect harder, rather than be killed.
	goMemoryPercent = 90
)

// relayMemory is enough for a relay that holds every shard, with a full batch in each.
func relayMemory(cfg config.Relay) int64 {
	return min(baseMemory+copiesOfBatch*cfg.Batch.MaxBytes*int64(cfg.Outbox.Shards), maxDefaultMemory)
}

// consumerMemory is enough for the largest message in each lane, and for usual ones in every batch.
func consumerMemory(cfg config.Consumer) int64 {
	lane := max(consumerBatchBytes, copiesOfBatch*cfg.Validation.MaxBytes)
	return min(baseMemory+lane*int64(cfg.Concurrency.Lanes), maxDefaultMemory)
}

func (b builder) podTemplate() (*corev1ac.PodTemplateSpecApplyConfiguration, error) {
	labels := b.labels()
	for key, value := range b.workload.Labels {
		if _, ours := labels[key]; !ours {
			labels[key] = string(value)
		}
	}
	spec := corev1ac.PodSpec().
		WithServiceAccountName(b.name).
		WithAutomountServiceAccountToken(false).
		WithEnableServiceLinks(false).
		WithTerminationGracePeriodSeconds(int64((DrainTime + killMargin).Seconds())).
		WithSecurityContext(corev1ac.PodSecurityContext().
			WithRunAsNonRoot(true).
			WithSeccompProfile(corev1ac.SeccompProfile().WithType(corev1.SeccompProfileTypeRuntimeDefault))).
		WithVolumes(b.volumes()...).
		WithContainers(b.worker())
	template := corev1ac.PodTemplateSpec().WithLabels(labels)
	if b.migration != nil {
		spec.WithInitContainers(b.step())
		template.WithAnnotations(map[string]string{AnnotationTables: b.migration.tables})
	}
	for _, secret := range b.workload.ImagePullSecrets {
		spec.WithImagePullSecrets(corev1ac.LocalObjectReference().WithName(secret.Name))
	}
	if b.workload.PriorityClassName != "" {
		spec.WithPriorityClassName(b.workload.PriorityClassName)
	}
	for key, value := range b.workload.NodeSelector {
		spec.WithNodeSelector(map[string]string{key: string(value)})
	}
	return template.WithSpec(spec), b.placement(spec)
}

// worker is the container that moves messages.
func (b builder) worker() *corev1ac.ContainerApplyConfiguration {
	return b.container(containerName, b.command, "--drain-timeout="+DrainTime.String()).
		WithVolumeMounts(b.mounts(func(r Reference) bool { return r.Mount != MigrationCredentialsMount })...).
		WithLivenessProbe(probe("/livez", 10, 6)).
		WithReadinessProbe(probe("/readyz", 5, 2))
}

// step is the container that makes the tables first. It ends when they are there; until then it tries again and
// answers /statusz as a worker does, so that what is wrong shows in the resource.
func (b builder) step() *corev1ac.ContainerApplyConfiguration {
	return b.container(stepName, "postrider", "schema", "apply", b.migration.component,
		"--credentials-dir="+path.Join(Root, MigrationCredentialsMount)).
		WithVolumeMounts(b.mounts(func(r Reference) bool { return !strings.HasPrefix(r.Mount, "broker/") })...)
}

// container has nothing of a user in its command line: what they say is in the config file.
func (b builder) container(name, command string, args ...string) *corev1ac.ContainerApplyConfiguration {
	requests, limits := b.resources()
	args = append(args, "--config="+path.Join(Root, ConfigMount, ConfigFile), "--listen=:"+strconv.Itoa(StatusPort))
	return corev1ac.Container().
		WithName(name).
		WithImage(b.settings.Image).
		WithCommand(binaries + command).
		WithArgs(args...).
		WithEnv(goMemory(limits)...).
		WithPorts(corev1ac.ContainerPort().WithName("status").WithContainerPort(StatusPort).
			WithProtocol(corev1.ProtocolTCP)).
		WithResources(corev1ac.ResourceRequirements().WithRequests(requests).WithLimits(limits)).
		WithSecurityContext(corev1ac.SecurityContext().
			WithAllowPrivilegeEscalation(false).
			WithPrivileged(false).
			WithReadOnlyRootFilesystem(true).
			WithRunAsNonRoot(true).
			WithCapabilities(corev1ac.Capabilities().WithDrop("ALL")))
}

// goMemory tells the Go runtime of the limit. 0 is none: told of it, the runtime would do nothing but collect.
func goMemory(limits corev1.ResourceList) []*corev1ac.EnvVarApplyConfiguration {
	memory := limits[corev1.ResourceMemory]
	if memory.Sign() <= 0 {
		return nil
	}
	return []*corev1ac.EnvVarApplyConfiguration{corev1ac.EnvVar().WithName("GOMEMLIMIT").
		WithValue(strconv.FormatInt(memory.Value()/100*goMemoryPercent, 10))}
}

func probe(address string, period, failures int32) *corev1ac.ProbeApplyConfiguration {
	return corev1ac.Probe().
		WithHTTPGet(corev1ac.HTTPGetAction().WithPath(address).WithPort(intstr.FromInt32(StatusPort)).
			WithScheme(corev1.URISchemeHTTP)).
		WithPeriodSeconds(period).
		WithTimeoutSeconds(5).
		WithFailureThreshold(failures)
}

// resources are the resource's own where it names them, and else a choice that does not contradict them.
func (b builder) resources() (requests, limits corev1.ResourceList) {
	requests = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(defaultCPURequest),
		corev1.ResourceMemory: *resource.NewQuantity(memoryRequest, resource.BinarySI),
	}
	limits = corev1.ResourceList{
		corev1.ResourceCPU:    resource.MustParse(defaultCPULimit),
		corev1.ResourceMemory: *resource.NewQuantity(b.memory, resource.BinarySI),
	}
	given := b.workload.Resources
	for name, limit := range given.Limits {
		limits[name] = limit.DeepCopy()
		if chosen, ok := requests[name]; ok && chosen.Cmp(limit) > 0 {
			requests[name] = limit.DeepCopy()
		}
	}
	for name, request := range given.Requests {
		requests[name] = request.DeepCopy()
		if chosen, ok := limits[name]; ok && chosen.Cmp(request) < 0 {
			if _, said := given.Limits[name]; !said {
				limits[name] = request.DeepCopy()
			}
		}
	}
	return requests, limits
}

// volumes are the config and, each in a directory of its own, the keys of what the resource refers to. They are
// optional: a Secret that is missing is told by the worker, and one that comes late is picked up.
func (b builder) volumes() []*corev1ac.VolumeApplyConfiguration {
	all := []*corev1ac.VolumeApplyConfiguration{
		corev1ac.Volume().WithName(configVolume).WithConfigMap(corev1ac.ConfigMapVolumeSource().
			WithName(b.name).WithDefaultMode(fileMode).
			WithItems(corev1ac.KeyToPath().WithKey(ConfigFile).WithPath(ConfigFile))),
	}
	for _, ref := range b.references {
		items := make([]*corev1ac.KeyToPathApplyConfiguration, 0, len(ref.Keys))
		for _, key := range ref.Keys {
			items = append(items, corev1ac.KeyToPath().WithKey(key).WithPath(key))
		}
		volume := corev1ac.Volume().WithName(volumeName(ref))
		if ref.Kind == KindConfigMap {
			volume.WithConfigMap(corev1ac.ConfigMapVolumeSource().
				WithName(ref.Name).WithOptional(true).WithDefaultMode(fileMode).WithItems(items...))
		} else {
			volume.WithSecret(corev1ac.SecretVolumeSource().
				WithSecretName(ref.Name).WithOptional(true).WithDefaultMode(fileMode).WithItems(items...))
		}
		all = append(all, volume)
	}
	return all
}

// mounts are whole directories: the kubelet swaps their content at once, and follows changes.
func (b builder) mounts(wanted func(Reference) bool) []*corev1ac.VolumeMountApplyConfiguration {
	all := []*corev1ac.VolumeMountApplyConfiguration{
		corev1ac.VolumeMount().WithName(configVolume).WithMountPath(path.Join(Root, ConfigMount)).WithReadOnly(true),
	}
	for _, ref := range b.references {
		if wanted(ref) {
			all = append(all, corev1ac.VolumeMount().
				WithName(volumeName(ref)).WithMountPath(ref.Directory(Root)).WithReadOnly(true))
		}
	}
	return all
}

func volumeName(ref Reference) string { return strings.ReplaceAll(ref.Mount, "/", "-") }

// placement says where the Pods run.
func (b builder) placement(spec *corev1ac.PodSpecApplyConfiguration) error {
	var errs []error
	for i := range b.workload.Tolerations {
		toleration, err := convert[corev1ac.TolerationApplyConfiguration](b.workload.Tolerations[i])
		errs = append(errs, err)
		spec.WithTolerations(toleration)
	}
	mine := metav1ac.LabelSelector().WithMatchLabels(b.selector)
	for i := range b.workload.TopologySpreadConstraints {
		c, err := convert[corev1ac.TopologySpreadConstraintApplyConfiguration](b.workload.TopologySpreadConstraints[i])
		errs = append(errs, err)
		if c.LabelSelector == nil {
			c.WithLabelSelector(mine)
		}
		spec.WithTopologySpreadConstraints(c)
	}
	if b.workload.Affinity != nil {
		affinity, err := convert[corev1ac.AffinityApplyConfiguration](b.workload.Affinity)
		errs = append(errs, err)
		spec.WithAffinity(affinity)
	} else {
		spec.WithAffinity(corev1ac.Affinity().WithPodAntiAffinity(corev1ac.PodAntiAffinity().
			WithPreferredDuringSchedulingIgnoredDuringExecution(corev1ac.WeightedPodAffinityTerm().
				WithWeight(100).
				WithPodAffinityTerm(corev1ac.PodAffinityTerm().
					WithTopologyKey(corev1.LabelHostname).
					WithLabelSelector(mine)))))
	}
	return errors.Join(errs...)
}

// convert reads a value as the apply configuration of its type: both have one form in JSON.
func convert[T any](value any) (*T, error) {
	into := new(T)
	raw, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(raw, into)
	}
	if err != nil {
		return into, fmt.Errorf("read %T: %w", value, err)
	}
	return into, nil
}

// InsecureTransports lists the connections of a relay that send plain text, by field.
func InsecureTransports(relay *v1alpha1.OutboxRelay) []string {
	field, broker := "", (*v1alpha1.TLS)(nil)
	switch d := relay.Spec.Destination; {
	case d.NATS != nil:
		field, broker = "spec.destination.nats.tls", &d.NATS.TLS
	case d.Kafka != nil:
		field, broker = "spec.destination.kafka.tls", &d.Kafka.TLS
	case d.RabbitMQ != nil:
		field, broker = "spec.destination.rabbitMQ.tls", &d.RabbitMQ.TLS
	}
	return insecure("spec.source.postgres.tls", relay.Spec.Source.Postgres.TLS, field, broker)
}

// InsecureConsumerTransports lists the connections of a consumer that send plain text, by field.
func InsecureConsumerTransports(consumer *v1alpha1.InboxConsumer) []string {
	field, broker := "", (*v1alpha1.TLS)(nil)
	switch s := consumer.Spec.Source; {
	case s.NATS != nil:
		field, broker = "spec.source.nats.tls", &s.NATS.TLS
	case s.Kafka != nil:
		field, broker = "spec.source.kafka.tls", &s.Kafka.TLS
	case s.RabbitMQ != nil:
		field, broker = "spec.source.rabbitMQ.tls", &s.RabbitMQ.TLS
	}
	return insecure("spec.inbox.postgres.tls", consumer.Spec.Inbox.Postgres.TLS, field, broker)
}

func insecure(databaseField string, database v1alpha1.TLS, brokerField string, broker *v1alpha1.TLS) []string {
	var fields []string
	if database.Mode == v1alpha1.TLSModeInsecure {
		fields = append(fields, databaseField)
	}
	if broker != nil && broker.Mode == v1alpha1.TLSModeInsecure {
		fields = append(fields, brokerField)
	}
	return fields
}
