package pipeline_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/pipeline"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/internal/statusz"
	"github.com/postrider/postrider/test/testkit"
)

// step is a migration that runs, with the credentials of the tables' owner in files.
type step struct {
	*pipeline.Migration[config.Consumer]
	owner string
	ended chan error
}

func (b *billing) startStep(owner config.Postgres) *step {
	b.t.Helper()
	s := &step{
		Migration: pipeline.NewConsumerMigration(b.cfg, owner.CredentialsDir, pipeline.Options{AllowLoopback: true}),
		owner:     owner.CredentialsDir, ended: make(chan error, 1),
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() { defer close(done); s.ended <- s.Run(ctx) }()
	b.t.Cleanup(func() { cancel(); <-done })
	return s
}

// finishes waits until the step has ended well.
func (s *step) finishes(t *testing.T) {
	t.Helper()
	var err error
	testkit.Eventually(t, patience, "the step to end", func() bool {
		select {
		case err = <-s.ended:
			return true
		default:
			return false
		}
	})
	if err != nil || !s.Done() {
		t.Fatalf("Run() = %v, Done() = %v", err, s.Done())
	}
}

func (s *step) reports(t *testing.T, kind, reason string) {
	t.Helper()
	testkit.Eventually(t, patience, kind+" False "+reason, func() bool {
		for _, c := range s.Report(t.Context()).Conditions {
			if c.Type == kind && c.Status == "False" && c.Reason == reason {
				return true
			}
		}
		return false
	})
	if r := s.Report(t.Context()); r.Step != statusz.StepSchema || r.Name != "billing" || r.Generation != 1 {
		t.Errorf("the report does not say whose step it is: %+v", r)
	}
}

func (b *billing) verified() error {
	conn := b.role.Connect()
	return schema.Verify(b.t.Context(), conn, postgres.Names{Schema: b.db.Schema}, schema.Expected{
		Options: schema.Options{Components: []schema.Component{schema.Inbox}}, Role: schema.RoleConsumer,
	})
}

func TestMigrationMakesTheTablesAndGivesTheWorkerItsRights(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	b.startStep(b.db.Config()).finishes(t)
	if err := b.verified(); err != nil {
		t.Errorf("the worker does not find its tables: %v", err)
	}
}

func TestMigrationSaysThatTheOwnerIsRefusedAndGoesOnWhenThatIsMended(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	owner := b.db.Ordinary().Config() // an owner of another database system than this: its password is wrong
	password := filepath.Join(owner.CredentialsDir, "password")
	if err := os.WriteFile(password, []byte("not-this-one"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := b.startStep(owner)
	s.reports(t, "SchemaReady", "AuthFailed")
	for _, c := range s.Report(t.Context()).Conditions {
		if strings.Contains(c.Message, "not-this-one") {
			t.Errorf("the report holds the password: %s", c.Message)
		}
	}
	right := b.db.Config()
	for _, name := range []string{"username", "password"} {
		content, err := os.ReadFile(filepath.Join(right.CredentialsDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(owner.CredentialsDir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s.Refresh()
	s.finishes(t)
}

func TestMigrationWaitsForASecretThatComesLate(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	owner := b.db.Config()
	late := filepath.Join(t.TempDir(), "late")
	here := owner.CredentialsDir
	owner.CredentialsDir = late
	s := b.startStep(owner)
	s.reports(t, "SchemaReady", "SecretNotFound")
	if err := os.Symlink(here, late); err != nil {
		t.Fatal(err)
	}
	s.Refresh()
	s.finishes(t)
}

func TestMigrationNeedsNoOwnerWhereAllIsDone(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	b.startStep(b.db.Config()).finishes(t)
	b.startStep(config.Postgres{CredentialsDir: filepath.Join(t.TempDir(), "none")}).finishes(t)
}

func TestMigrationSaysThatTheDatabaseIsDown(t *testing.T) {
	t.Parallel()
	b := newBilling(t)
	b.cfg.Inbox.Postgres.Port = 1
	b.startStep(b.db.Config()).reports(t, "DatabaseReachable", "Unreachable")
}
