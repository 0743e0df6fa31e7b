//go:build kubernetes

package e2e

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/shop"
	"github.com/postrider/postrider/test/stage"
	"github.com/postrider/postrider/test/testkit"
)

const (
	patience = 3 * time.Minute
	system   = stage.System
	space    = stage.Namespace

	relay    = "orders-relay"
	consumer = "billing-consumer"

	// The shop opens for a short while, again and again.
	orders      = 120
	writers     = 4
	openFor     = 5 * time.Second
	rollbackPct = 5
	// flowing is how many messages have been applied when the business is under way.
	flowing = 100
)

// kubectl runs kubectl and returns what it prints.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := theStage.Read(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// refused runs kubectl, which must fail, and returns what it says.
func refused(t *testing.T, args ...string) string {
	t.Helper()
	out, err := theStage.Read(t.Context(), args...)
	if err == nil {
		t.Fatalf("kubectl %s was done, want it refused: %s", strings.Join(args, " "), out)
	}
	return err.Error()
}

// begin readies a test: it says what the cluster looked like where the test fails.
func begin(t *testing.T) {
	t.Helper()
	testkit.NeedsRoot(t)
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, args := range [][]string{
			{"get", "pods", "--all-namespaces", "--output=wide"},
			{"get", "outboxrelays,inboxconsumers", "--all-namespaces", "--output=yaml"},
			{"get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"},
			{"--namespace", system, "logs", "--prefix", "--tail=30", "--selector=app.kubernetes.io/component=manager"},
			{"--namespace", space, "logs", "--prefix", "--tail=30", "--selector=app.kubernetes.io/name=postrider"},
		} {
			out, err := theStage.Read(context.WithoutCancel(t.Context()), args...)
			t.Logf("$ kubectl %s\n%s %v", strings.Join(args, " "), out, err)
		}
	})
}

// duringBusiness opens the shop, does something to the cluster while messages flow, waits until all business has had its
// effect and the resources are well again, and proves it: everything was published, and applied once, in order.
func duringBusiness(t *testing.T, fault func()) {
	t.Helper()
	before := applied(t)
	var over atomic.Bool
	closed := make(chan error, 1)
	go func() { closed <- business(t.Context(), &over) }()
	testkit.Eventually(t, patience, "messages flow", func() bool { return applied(t) >= before+flowing })
	fault()
	over.Store(true)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	if _, err := theStage.Settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	well(t)
	if err := theStage.Verify(t.Context()); err != nil {
		t.Error(err)
	}
}

// business opens the shop until it is over.
func business(ctx context.Context, over *atomic.Bool) error {
	for day := uint64(0); ; day++ {
		last := over.Load()
		err := theStage.Open(ctx, shop.Config{
			Orders: orders, Writers: writers, Duration: openFor, RollbackPercent: rollbackPct, Seed: day,
		})
		if err != nil || last {
			return err
		}
	}
}

// well waits until both resources are ready with all their workers.
func well(t *testing.T) {
	t.Helper()
	for _, deployment := range []string{relay, consumer} {
		if err := theStage.RolledOut(t.Context(), space, deployment); err != nil {
			t.Fatal(err)
		}
	}
	if err := theStage.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// applied counts what billing has booked.
func applied(t *testing.T) int {
	t.Helper()
	ledger, err := shop.ReadLedger(t.Context(), theStage.Sides.Billing)
	if err != nil {
		t.Fatal(err)
	}
	return ledger.Entries
}

// podsOf returns the running Pods of a component, by their names.
func podsOf(t *testing.T, namespace, component string) []string {
	t.Helper()
	return strings.Fields(kubectl(t, "--namespace", namespace, "get", "pods", "--field-selector=status.phase=Running",
		"--selector=app.kubernetes.io/component="+component, "--output=jsonpath={.items[*].metadata.name}"))
}

// crash ends a Pod's process as kill -9 or the kernel's memory limit does. The kubelet starts it again.
func crash(t *testing.T, namespace, pod string) {
	t.Helper()
	id := kubectl(t, "--namespace", namespace, "get", "pod", pod,
		"--output=jsonpath={.status.containerStatuses[0].containerID}")
	out, err := theCluster.Ctr(t.Context(), "tasks", "kill", "--signal", "SIGKILL",
		strings.TrimPrefix(id, "containerd://")).CombinedOutput()
	if err != nil {
		t.Fatalf("kill %s: %v: %s", pod, err, out)
	}
}
