//go:build kubernetes

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/test/cluster"
	"github.com/postrider/postrider/test/sandbox"
	"github.com/postrider/postrider/test/stage"
	"github.com/postrider/postrider/test/testkit"
)

// The tests of this file follow each other on one cluster, from what is installed to its end: none runs beside another.

func TestAsRootTheSamplesRunAsInstalled(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	// From here on every Pod of the shop has to keep to it, those of later tests too.
	kubectl(t, "label", "namespace", space, "pod-security.kubernetes.io/enforce=restricted")

	duringBusiness(t, func() {})

	for resource, columns := range map[string][]string{
		"outboxrelays":   {"NAME", "READY", "BACKLOG", "OLDEST", "DEAD", "REPLICAS", "DESTINATION", "AGE"},
		"inboxconsumers": {"NAME", "READY", "LAG", "OLDEST", "PARKED", "GAPS", "DEAD", "REPLICAS", "SOURCE", "AGE"},
	} {
		header, row, _ := strings.Cut(kubectl(t, "--namespace", space, "get", resource), "\n")
		if got := strings.Fields(header); strings.Join(got, " ") != strings.Join(columns, " ") {
			t.Errorf("columns %v, want %v", got, columns)
		}
		if fields := strings.Fields(row); len(fields) < 2 || fields[1] != "True" {
			t.Errorf("not ready: %s", row)
		}
	}
	generation := func() string {
		return kubectl(t, "--namespace", space, "get", "outboxrelays,inboxconsumers,deployments",
			"--output=jsonpath={.items[*].metadata.generation}")
	}
	before := generation()
	if err := theStage.Apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	if after := generation(); after != before {
		t.Errorf("applying the samples again changed them: generations %s, before %s", after, before)
	}
	for _, secret := range []string{"get", "list", "watch"} {
		answer := refused(t, "auth", "can-i", secret, "secrets", "--namespace", space,
			"--as=system:serviceaccount:"+system+":postrider-manager")
		if !strings.Contains(answer, "no") {
			t.Errorf("the manager may %s Secrets: %s", secret, answer)
		}
	}
}

func TestAsRootKilledWorkersLoseNothing(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	duringBusiness(t, func() {
		crash(t, space, podsOf(t, space, "relay")[0])
		crash(t, space, podsOf(t, space, "consumer")[0])
		for _, component := range []string{"relay", "consumer"} {
			kubectl(
				t,
				"--namespace",
				space,
				"delete",
				"pod",
				podsOf(t, space, component)[1],
				"--force",
				"--grace-period=0",
			)
		}
	})
}

func TestAsRootARollingRestartLosesNothing(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	duringBusiness(t, func() {
		kubectl(t, "--namespace", space, "rollout", "restart", "deployment/"+relay, "deployment/"+consumer)
		for _, deployment := range []string{relay, consumer} {
			if err := theStage.RolledOut(t.Context(), space, deployment); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// A drain evicts; the budget lets one worker of a resource go at a time.
func TestAsRootADrainTakesOneWorkerAtATime(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	duringBusiness(t, func() {
		for _, component := range []string{"relay", "consumer"} {
			pods := podsOf(t, space, component)
			if len(pods) != 2 {
				t.Fatalf("%d Pods of the %s, want 2", len(pods), component)
			}
			evict(t, pods[0])
			if said := refusedEviction(t, pods[1]); !strings.Contains(said, "disruption budget") {
				t.Errorf("the second eviction: %s", said)
			}
		}
	})
}

func TestAsRootAManagerThatDiesMidRolloutIsSucceeded(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	duringBusiness(t, func() {
		managers := podsOf(t, system, "manager")
		for _, resource := range []string{"outboxrelay/orders", "inboxconsumer/billing"} {
			kubectl(t, "--namespace", space, "patch", resource, "--type=merge",
				`--patch={"spec":{"workload":{"labels":{"example.com/round":"two"}}}}`)
		}
		for _, manager := range managers {
			crash(t, system, manager)
		}
	})
	for _, component := range []string{"relay", "consumer"} {
		for _, pod := range podsOf(t, space, component) {
			round := kubectl(
				t,
				"--namespace",
				space,
				"get",
				"pod",
				pod,
				`--output=jsonpath={.metadata.labels.example\.com/round}`,
			)
			if round != "two" {
				t.Errorf("%s is of round %q", pod, round)
			}
		}
	}
}

// An image that is not there stops nothing: the workers of before go on until the change is taken back.
func TestAsRootABadImageIsRolledBack(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	before := podsOf(t, space, "relay")
	duringBusiness(t, func() {
		if err := theStage.InstallImages(t.Context(), "postrider:dev", "postrider:nowhere"); err != nil {
			t.Fatal(err)
		}
		testkit.Eventually(t, patience, "the kubelet looks for the bad image", func() bool {
			return strings.Contains(kubectl(t, "--namespace", space, "get", "pods",
				"--output=jsonpath={.items[*].status.initContainerStatuses[*].state.waiting.reason}"), "Image")
		})
		if ready := kubectl(t, "--namespace", space, "get", "outboxrelay/orders",
			`--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}`); ready == "True" {
			t.Error("the relay is said to be ready while its newest Pods cannot start")
		}
		flowed := applied(t)
		testkit.Eventually(t, patience, "messages flow beside the bad image", func() bool {
			return applied(t) > flowed
		})
		for _, pod := range before {
			kubectl(t, "--namespace", space, "get", "pod", pod)
		}
		if err := theStage.Install(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	// A Pod that never ran may still be going.
	testkit.Eventually(t, patience, "no Pod is left of the bad image", func() bool {
		return !strings.Contains(kubectl(t, "--namespace", space, "get", "pods",
			"--output=jsonpath={.items[*].spec.containers[*].image}"), "postrider:nowhere")
	})
}

// The last test on the stage: nobody is there any more whom a deletion could wait for.
func TestAsRootResourcesGoInAnyOrder(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	theStage.Close() // the databases and the broker first
	kubectl(t, "--namespace", space, "delete", "secrets", "--all")
	kubectl(t, "--namespace", space, "delete", "inboxconsumer", "billing", "--timeout=1m")
	kubectl(t, "--namespace", system, "scale", "deployment", "postrider-manager", "--replicas=0")
	kubectl(t, "--namespace", system, "wait", "--for=delete", "pod",
		"--selector=app.kubernetes.io/component=manager", "--timeout=2m")
	kubectl(t, "--namespace", space, "delete", "outboxrelay", "orders", "--timeout=1m")

	testkit.Eventually(t, patience, "what the operator made is gone with its owners", func() bool {
		return kubectl(t, "--namespace", space, "get", "deployments,replicasets,pods,configmaps,serviceaccounts,"+
			"poddisruptionbudgets", "--selector=app.kubernetes.io/name=postrider", "--output=name") == ""
	})
	kubectl(t, "delete", "--filename=../../dist/install.yaml", "--timeout=2m")
	kubectl(t, "delete", "namespace", stage.Namespace, "--timeout=2m")
}

// With KUBECONFIG the quick start is a guest: it plays in a cluster that it knows nothing of, whose images come from
// elsewhere, and leaves nothing behind. The tests before have cleared the cluster.
func TestAsRootTheQuickStartIsAGuestInSomebodysCluster(t *testing.T) { //nolint:paralleltest // see above
	begin(t)
	for _, file := range serverImages() {
		image, err := cluster.Binary(t.Context(), file)
		if err != nil {
			t.Fatal(err)
		}
		if out, err := theCluster.Ctr(t.Context(), "images", "import", image).CombinedOutput(); err != nil {
			t.Fatalf("import %s: %v: %s", file, err, out)
		}
	}
	before := kubectl(
		t,
		"get",
		"namespaces,customresourcedefinitions,clusterroles,clusterrolebindings",
		"--output=name",
	)

	said := quickstart(t)
	for _, want := range []string{"orders   True", "billing   True", "promises kept", "\nOK: 3000 orders, 9000 messages"} {
		if !strings.Contains(said, want) {
			t.Errorf("the quick start does not say %q", want)
		}
	}
	after := kubectl(t, "get", "namespaces,customresourcedefinitions,clusterroles,clusterrolebindings", "--output=name")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the quick start leaves a difference (-before +after):\n%s", diff)
	}
	kubectl(t, "create", "namespace", stage.System)
	if said, err := tryQuickstart(t); err == nil || !strings.Contains(said, "use another cluster") {
		t.Errorf("the quick start in a cluster that has Postrider: %v\n%s", err, said)
	}
	kubectl(t, "get", "namespace", stage.System) // it is not ours to delete
}

func quickstart(t *testing.T) string {
	t.Helper()
	said, err := tryQuickstart(t)
	if err != nil {
		t.Fatalf("the quick start: %v\n%s", err, said)
	}
	return said
}

// tryQuickstart runs the quick start as a person does who is outside, with a kubectl on the path.
func tryQuickstart(t *testing.T) (string, error) {
	t.Helper()
	bin, err := cluster.Binary(t.Context(), "quickstart-cluster")
	if err != nil {
		t.Fatal(err)
	}
	root, err := cluster.Root(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), bin)
	cmd.Dir = root
	cmd.Env = append(sandbox.Outside(os.Environ()), "KUBECONFIG="+theCluster.Kubeconfig,
		"PATH="+filepath.Dir(theCluster.Kubectl(t.Context()).Path)+string(os.PathListSeparator)+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// evict asks for an eviction as a drain does.
func evict(t *testing.T, pod string) {
	t.Helper()
	if said, err := eviction(t, pod); err != nil {
		t.Fatalf("evict %s: %v: %s", pod, err, said)
	}
}

func refusedEviction(t *testing.T, pod string) string {
	t.Helper()
	said, err := eviction(t, pod)
	if err == nil {
		t.Fatalf("%s was evicted too", pod)
	}
	return said
}

func eviction(t *testing.T, pod string) (string, error) {
	t.Helper()
	cmd := theCluster.Kubectl(t.Context(), "create", "--raw",
		fmt.Sprintf("/api/v1/namespaces/%s/pods/%s/eviction", space, pod), "--filename=-")
	cmd.Stdin = strings.NewReader(fmt.Sprintf(
		`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":%q,"namespace":%q}}`, pod, space))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
