package desired_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/desired"
)

const image = "registry.example/postrider@sha256:1111"

// settings are those of an operator that is installed.
var settings = desired.Settings{Image: image, OperatorNamespace: "postrider-system"}

// manifests writes a workload as a person would apply it.
func manifests(t *testing.T, w desired.Workload) string {
	t.Helper()
	var all []string
	for _, object := range []any{w.ServiceAccount, w.ConfigMap, w.PodDisruptionBudget, w.NetworkPolicy, w.Deployment} {
		raw, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(raw))
	}
	return strings.Join(all, "---\n")
}

func resources(t *testing.T, paths ...string) (*v1alpha1.OutboxRelay, *v1alpha1.InboxConsumer) {
	t.Helper()
	set := read(t, paths...)
	relay, consumer := set.Relays[0].OutboxRelay, set.Consumers[0].InboxConsumer
	relay.Generation, consumer.Generation = 3, 4
	relay.UID, consumer.UID = "11111111-2222-3333-4444-555555555555", "66666666-7777-8888-9999-000000000000"
	return relay, consumer
}

func full(t *testing.T) (*v1alpha1.OutboxRelay, *v1alpha1.InboxConsumer) {
	t.Helper()
	return resources(t, "testdata/relay.yaml", "testdata/consumer.yaml")
}

func relayWorkload(t *testing.T, relay *v1alpha1.OutboxRelay) desired.Workload {
	t.Helper()
	w, err := desired.RelayWorkload(relay, settings)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestWorkloads(t *testing.T) {
	t.Parallel()
	samples := []string{"../../config/samples/orders-relay.yaml", "../../config/samples/billing-consumer.yaml"}
	for name, paths := range map[string][]string{
		"full": {"testdata/relay.yaml", "testdata/consumer.yaml"}, "samples": samples,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay, consumer := resources(t, paths...)
			golden(t, name+".relay.workload.yaml", manifests(t, relayWorkload(t, relay)))
			w, err := desired.ConsumerWorkload(consumer, settings)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, name+".consumer.workload.yaml", manifests(t, w))
		})
	}
}

// A worker reads from the ConfigMap what desired.Relay says.
func TestConfigMapHoldsTheConfiguration(t *testing.T) {
	t.Parallel()
	relay, _ := full(t)
	want, err := desired.Relay(relay, desired.Inputs{Root: desired.Root})
	if err != nil {
		t.Fatal(err)
	}
	got, err := config.ParseRelay([]byte(relayWorkload(t, relay).ConfigMap.Data[desired.ConfigFile]))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the file says otherwise (-want +got):\n%s", diff)
	}
}

// What the field comments call live must not touch the Pod template, and what they say rolls the Pods must.
func TestWhatRollsThePods(t *testing.T) {
	t.Parallel()
	live := map[string]func(*v1alpha1.OutboxRelaySpec){
		"runPolicy":         func(s *v1alpha1.OutboxRelaySpec) { s.RunPolicy = v1alpha1.RunPolicyDrain },
		"batch.maxMessages": func(s *v1alpha1.OutboxRelaySpec) { s.Batch.MaxMessages++ },
		"lease.duration":    func(s *v1alpha1.OutboxRelaySpec) { s.Lease.Duration = "55m" },
		"statusInterval":    func(s *v1alpha1.OutboxRelaySpec) { s.StatusInterval = "1m" },
		"destination.nats":  func(s *v1alpha1.OutboxRelaySpec) { s.Destination.NATS.Stream = "OTHER" },
		"messageFormat": func(s *v1alpha1.OutboxRelaySpec) {
			s.Destination.MessageFormat = v1alpha1.MessageFormatCloudEventsBinary
		},
		"maxConnections":     func(s *v1alpha1.OutboxRelaySpec) { s.Source.Postgres.MaxConnections++ },
		"retryBudget":        func(s *v1alpha1.OutboxRelaySpec) { s.RetryBudget.MaxBackoff = "24h" },
		"publishedRetention": func(s *v1alpha1.OutboxRelaySpec) { s.Outbox.PublishedRetention = "1h" },
		"replicas":           func(s *v1alpha1.OutboxRelaySpec) { n := int32(1); s.Replicas = &n },
	}
	rolls := map[string]func(*v1alpha1.OutboxRelaySpec){
		"credentialsSecretRef": func(s *v1alpha1.OutboxRelaySpec) { s.Source.Postgres.CredentialsSecretRef.Name = "x" },
		"schemaPolicy":         func(s *v1alpha1.OutboxRelaySpec) { s.Outbox.SchemaPolicy = v1alpha1.SchemaPolicyVerify },
		"tls.caSecretRef": func(s *v1alpha1.OutboxRelaySpec) {
			s.Destination.NATS.TLS.CAConfigMapRef = nil
			s.Destination.NATS.TLS.CASecretRef = &v1alpha1.SecretReference{Name: "x"}
		},
		"workload.labels":         func(s *v1alpha1.OutboxRelaySpec) { s.Workload.Labels = map[string]v1alpha1.LabelValue{"a": "b"} },
		"database, under Managed": func(s *v1alpha1.OutboxRelaySpec) { s.Source.Postgres.Database = "x" },
		"schema, under Managed":   func(s *v1alpha1.OutboxRelaySpec) { s.Source.Postgres.Schema = "x" },
		"table, under Managed":    func(s *v1alpha1.OutboxRelaySpec) { s.Outbox.Table = "x" },
		"hosts, under Managed":    func(s *v1alpha1.OutboxRelaySpec) { s.Source.Postgres.Hosts = []v1alpha1.Host{"x"} },
		"workload.resources.limits": func(s *v1alpha1.OutboxRelaySpec) {
			s.Workload.Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("2Gi")}
		},
	}
	base, _ := full(t)
	before := relayWorkload(t, base)
	for name, change := range live {
		t.Run(name+" is taken over live", func(t *testing.T) {
			t.Parallel()
			relay := base.DeepCopy()
			change(&relay.Spec)
			after := relayWorkload(t, relay)
			if diff := cmp.Diff(
				text(t, before.Deployment.Spec.Template),
				text(t, after.Deployment.Spec.Template),
			); diff != "" {
				t.Errorf("the Pod template changed:\n%s", diff)
			}
			if name != "replicas" &&
				before.ConfigMap.Data[desired.ConfigFile] == after.ConfigMap.Data[desired.ConfigFile] {
				t.Error("no worker hears of it")
			}
		})
	}
	for name, change := range rolls {
		t.Run(name+" rolls the Pods", func(t *testing.T) {
			t.Parallel()
			relay := base.DeepCopy()
			change(&relay.Spec)
			if text(t, before.Deployment.Spec.Template) == text(t, relayWorkload(t, relay).Deployment.Spec.Template) {
				t.Error("the Pod template is the same")
			}
		})
	}
}

func text(t *testing.T, value any) string {
	t.Helper()
	raw, err := json.MarshalIndent(value, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// Security T14: what a user writes reaches a worker by the config file only. T13: nor does it choose what runs.
func TestNothingOfAUserIsInTheCommandLine(t *testing.T) {
	t.Parallel()
	_, consumer := full(t)
	const evil = "$(GOMEMLIMIT);id"
	consumer.Spec.Handler.SQL.Routes[0].Statement = evil
	w, err := desired.ConsumerWorkload(consumer, settings)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(w.ConfigMap.Data[desired.ConfigFile], evil) {
		t.Error("the config file does not have it literally")
	}
	if pod := text(t, w.Deployment.Spec.Template); strings.Contains(pod, "$(") || strings.Contains(pod, ";id") {
		t.Errorf("the Pod template holds text of the resource:\n%s", pod)
	}
	for _, c := range append(w.Deployment.Spec.Template.Spec.Containers, w.Deployment.Spec.Template.Spec.InitContainers...) {
		if *c.Image != image {
			t.Errorf("container %s runs image %s, not the operator's", *c.Name, *c.Image)
		}
	}
}

// Every Pod is one that a namespace of level restricted takes, judged by the API server's own code.
func TestPodsMeetPodSecurityRestricted(t *testing.T) {
	t.Parallel()
	checks, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	relay, consumer := full(t)
	consumer.Spec.Inbox.SchemaPolicy = v1alpha1.SchemaPolicyManaged
	consumer.Spec.Inbox.MigrationCredentialsSecretRef = &v1alpha1.SecretReference{Name: "owner"}
	second, err := desired.ConsumerWorkload(consumer, settings)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []desired.Workload{relayWorkload(t, relay), second} {
		var pod corev1.PodTemplateSpec
		if err := json.Unmarshal([]byte(text(t, w.Deployment.Spec.Template)), &pod); err != nil {
			t.Fatal(err)
		}
		restricted := psa.LevelVersion{Level: psa.LevelRestricted, Version: psa.LatestVersion()}
		for _, result := range checks.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
			if !result.Allowed {
				t.Errorf("%s: %s: %s", *w.Deployment.Name, result.ForbiddenReason, result.ForbiddenDetail)
			}
		}
		if *pod.Spec.AutomountServiceAccountToken || *w.ServiceAccount.AutomountServiceAccountToken {
			t.Error("a token is mounted")
		}
		beyondRestricted(t, &pod.Spec)
	}
}

// beyondRestricted checks what we promise on top of the level.
func beyondRestricted(t *testing.T, pod *corev1.PodSpec) {
	t.Helper()
	for _, c := range append(pod.Containers, pod.InitContainers...) {
		if !*c.SecurityContext.ReadOnlyRootFilesystem || c.SecurityContext.RunAsUser != nil {
			t.Errorf(
				"container %s: %+v, want a read-only root file system and no fixed user",
				c.Name,
				c.SecurityContext,
			)
		}
	}
	for _, v := range pod.Volumes {
		if v.Secret != nil && (!*v.Secret.Optional || len(v.Secret.Items) == 0) {
			t.Errorf(
				"volume %s: a missing Secret would keep the Pod from starting, or all its keys are mounted",
				v.Name,
			)
		}
	}
}

// Only the step that makes the tables has the owner's password, and that step has no broker's.
func TestWhoSeesWhichSecret(t *testing.T) {
	t.Parallel()
	relay, _ := full(t)
	pod := relayWorkload(t, relay).Deployment.Spec.Template.Spec
	for _, mount := range pod.Containers[0].VolumeMounts {
		if strings.Contains(*mount.MountPath, desired.MigrationCredentialsMount) {
			t.Error("the worker has the owner's credentials")
		}
	}
	var owner bool
	for _, mount := range pod.InitContainers[0].VolumeMounts {
		owner = owner || strings.HasSuffix(*mount.MountPath, desired.MigrationCredentialsMount)
		if strings.Contains(*mount.MountPath, "/broker/") {
			t.Errorf("the step has %s", *mount.MountPath)
		}
	}
	if !owner {
		t.Error("the step lacks the owner's credentials")
	}
}

func TestResourcesOfAContainer(t *testing.T) {
	t.Parallel()
	quantities := func(cpu, memory string) corev1.ResourceList {
		list := corev1.ResourceList{}
		for name, value := range map[corev1.ResourceName]string{"cpu": cpu, "memory": memory} {
			if value != "" {
				list[name] = resource.MustParse(value)
			}
		}
		return list
	}
	cases := map[string]struct {
		given             v1alpha1.Resources
		requests, limits  corev1.ResourceList
		wantGoMemoryLimit string
	}{
		"unset, the memory is enough for all batches": {
			v1alpha1.Resources{}, quantities("50m", "64Mi"), quantities("2", "192Mi"), "181193850",
		},
		"a small limit lowers the request": {
			v1alpha1.Resources{
				Limits: quantities("20m", "32Mi"),
			},
			quantities("20m", "32Mi"),
			quantities("20m", "32Mi"),
			"30198960",
		},
		"a large request raises the limit": {
			v1alpha1.Resources{
				Requests: quantities("4", "1Gi"),
			},
			quantities("4", "1Gi"),
			quantities("4", "1Gi"),
			"966367620",
		},
		"both set are taken as they are": {
			v1alpha1.Resources{Requests: quantities("1", "256Mi"), Limits: quantities("3", "512Mi")},
			quantities("1", "256Mi"), quantities("3", "512Mi"), "483183810",
		},
		"a limit of 0 is none, of which the runtime is not told": {
			v1alpha1.Resources{Limits: quantities("0", "0")}, quantities("0", "0"), quantities("0", "0"), "",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			relay, _ := resources(
				t,
				"../../config/samples/orders-relay.yaml",
				"../../config/samples/billing-consumer.yaml",
			)
			relay.Spec.Workload.Resources = tc.given
			worker := relayWorkload(t, relay).Deployment.Spec.Template.Spec.Containers[0]
			if diff := cmp.Diff(text(t, tc.requests), text(t, *worker.Resources.Requests)); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(text(t, tc.limits), text(t, *worker.Resources.Limits)); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
			got := ""
			for _, env := range worker.Env {
				if *env.Name == "GOMEMLIMIT" {
					got = *env.Value
				}
			}
			if got != tc.wantGoMemoryLimit {
				t.Errorf("GOMEMLIMIT = %q, want %q", got, tc.wantGoMemoryLimit)
			}
		})
	}
}

func TestNoNetworkPolicyWithoutTheOperatorsNamespace(t *testing.T) {
	t.Parallel()
	relay, consumer := full(t)
	for _, namespace := range []string{"", "postrider-system"} {
		s := desired.Settings{Image: image, OperatorNamespace: namespace}
		r, relayErr := desired.RelayWorkload(relay, s)
		c, consumerErr := desired.ConsumerWorkload(consumer, s)
		if relayErr != nil || consumerErr != nil {
			t.Fatal(relayErr, consumerErr)
		}
		if made := r.NetworkPolicy != nil && c.NetworkPolicy != nil; made != (namespace != "") {
			t.Errorf("in namespace %q: a NetworkPolicy is made: %v", namespace, made)
		}
	}
}

// Security T4: what hands out a cloud's credentials is not reached, whatever host a resource names.
func TestTheNetworkPolicyKeepsWorkersFromTheirNode(t *testing.T) {
	t.Parallel()
	relay, _ := full(t)
	policy := relayWorkload(t, relay).NetworkPolicy.Spec
	if len(policy.PolicyTypes) != 2 || len(policy.Ingress) != 1 || len(policy.Ingress[0].Ports) != 1 ||
		policy.Ingress[0].Ports[0].Port.IntVal != desired.StatusPort {
		t.Errorf("ingress = %v, want the status port alone", text(t, policy.Ingress))
	}
	for _, rule := range policy.Egress {
		if len(rule.To) == 0 { // anywhere: for names only
			for _, port := range rule.Ports {
				if port.Port.IntVal != 53 {
					t.Errorf("port %d is reached anywhere", port.Port.IntVal)
				}
			}
			if len(rule.Ports) == 0 {
				t.Error("everything is reached anywhere")
			}
		}
		for _, to := range rule.To {
			if to.IPBlock != nil && len(to.IPBlock.Except) == 0 {
				t.Errorf("block %s leaves nothing out", *to.IPBlock.CIDR)
			}
		}
	}
}

func TestReplicasAreNamedOnlyWhereTheResourceDoes(t *testing.T) {
	t.Parallel()
	relay, _ := full(t)
	relay.Spec.Replicas = nil
	if got := relayWorkload(t, relay).Deployment.Spec.Replicas; got != nil {
		t.Errorf("replicas = %d, want it left to whoever scales", *got)
	}
	n := int32(0)
	relay.Spec.Replicas = &n
	if got := relayWorkload(t, relay).Deployment.Spec.Replicas; got == nil || *got != 0 {
		t.Errorf("replicas = %v, want 0", got)
	}
}

// The statements of a consumer may be long; a ConfigMap that no server would take is refused in words.
func TestAConfigurationThatNoConfigMapHolds(t *testing.T) {
	t.Parallel()
	_, consumer := full(t)
	route := consumer.Spec.Handler.SQL.Routes[0]
	consumer.Spec.Handler.SQL.Routes = nil
	for i := range 64 {
		r := route
		r.EventTypes = []v1alpha1.EventTypePattern{v1alpha1.EventTypePattern("a" + strings.Repeat("b", i))}
		r.Statement = "SELECT 1 --" + strings.Repeat("\t", 8181) // each takes two characters in JSON
		consumer.Spec.Handler.SQL.Routes = append(consumer.Spec.Handler.SQL.Routes, r)
	}
	if _, err := desired.ConsumerWorkload(consumer, settings); err == nil ||
		!strings.Contains(err.Error(), "shorten the statements") {
		t.Errorf("ConsumerWorkload() error = %v, want it to say what to do", err)
	}
}
