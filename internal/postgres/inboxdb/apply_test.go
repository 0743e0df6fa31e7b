package inboxdb_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/verdict"
)

func (in *inbox) apply(s interface {
	Apply(ctx context.Context, job verdict.Job, items []*verdict.Item) ([]verdict.Decision, error)
}, items ...*verdict.Item) []string {
	in.t.Helper()
	ds, err := s.Apply(in.t.Context(), job(verdict.Rules{}), items)
	if err != nil {
		in.t.Fatalf("Apply() error = %v", err)
	}
	return actions(ds)
}

func TestABatchCommitsEffectsInboxAndKeysTogether(t *testing.T) {
	t.Parallel()
	in := newInbox(t)
	s := in.store()

	got := in.apply(s, order("a", "k", 1), order("b", "l", 1), order("c", "k", 2), order("a", "k", 1))

	if diff := cmp.Diff([]string{"applied", "applied", "applied", "duplicate"}, got); diff != "" {
		t.Errorf("decisions differ (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"k@1", "l@1", "k@2"}, in.effects()); diff != "" {
		t.Errorf("effects differ (-want +got):\n%s", diff)
	}
	again := in.apply(s, order("c", "k", 2), order("d", "k", 3))
	if diff := cmp.Diff([]string{"duplicate", "applied"}, again); diff != "" {
		t.Errorf("decisions of a redelivery differ (-want +got):\n%s", diff)
	}
}
