package pipeline_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/testkit"
)

// copyHost is where the copy of a server listens; at the same port, as another machine would.
const copyHost = "127.0.0.2"

// primaryWithCopy starts a PostgreSQL and a streaming copy of it that confirms each commit.
func primaryWithCopy(t *testing.T) (primary *local.Postgres, dir string) {
	t.Helper()
	root := testkit.SharedDir(t)
	dir = filepath.Join(root, "primary")
	other := filepath.Join(root, "copy")
	first, err := local.StartPostgres(t.Context(), local.PostgresConfig{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A copy of a server that has ended is a base backup. cp keeps the owner, which is not us where we are root.
	if err := os.Mkdir(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "cp", "-a",
		filepath.Join(dir, "data"), filepath.Join(dir, "password"), other).CombinedOutput(); err != nil {
		t.Fatalf("copy the server: %v: %s", err, out)
	}
	write(t, filepath.Join(other, "data", "standby.signal"), "")
	primary = testkit.PostgresServer(t, local.PostgresConfig{Dir: dir})
	testkit.PostgresServer(t, local.PostgresConfig{Dir: other, Parameters: map[string]string{
		"listen_addresses": copyHost, "port": strconv.Itoa(primary.Port()),
		"primary_conninfo": fmt.Sprintf("host=%s port=%d user=%s password=%s", primary.Host(), primary.Port(),
			primary.User(), primary.Password()),
	}})
	return primary, dir
}

// The database's machine is lost and its copy is promoted: relays find it by themselves, what was committed is
// published, and each shard has one owner.
func TestRelaysFollowTheDatabaseToItsPromotedCopy(t *testing.T) {
	t.Parallel()
	primary, dir := primaryWithCopy(t)
	o := newOrders(t, testkit.OnServer(primary))
	t.Cleanup(func() { // for what cleans up there
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = os.Remove(filepath.Join(dir, "data", "postgresql.auto.conf")) // the next commit would wait for the copy
		_ = primary.Start(ctx)                                            // it may not have been killed
	})
	o.db.Exec(`ALTER SYSTEM SET synchronous_standby_names = '*'`)
	o.db.Exec(`SELECT pg_reload_conf()`)
	testkit.Eventually(t, 2*patience, "the copy confirms commits", func() bool {
		return testkit.Value[bool](o.db, `SELECT count(*) = 1 FROM pg_stat_replication WHERE sync_state = 'sync'`)
	})
	o.cfg.Source.Hosts = []string{primary.Host(), copyHost}
	_, first := o.start(o.cfg)
	_, second := o.start(o.cfg)
	o.write(60)
	o.published(60)
	o.write(200) // on their way when the machine is lost

	if err := primary.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	o.db = o.db.At(copyHost, primary.Port())
	if !testkit.Value[bool](o.db, `SELECT pg_promote(true, 60)`) {
		t.Fatal("the copy was not promoted")
	}
	o.write(100)
	o.published(360)

	testkit.Eventually(t, 2*patience, "each shard has one owner", func() bool {
		var held []int16
		for _, l := range []*life{first, second} {
			if r := l.report(t.Context()).Relay; r != nil {
				held = append(held, r.HeldShards...)
			}
		}
		slices.Sort(held)
		return slices.Equal(held, []int16{0, 1, 2, 3})
	})
	report, err := verify.Run(t.Context(), verify.Input{Grace: time.Minute, Relays: []verify.Relay{{
		Name: "relay", Pool: o.db.Pool(), Tables: postgres.Names{Schema: o.db.Schema, Outbox: "message_outbox"},
		Stream: verify.Stream{JS: o.broker.JetStream(), Name: o.cfg.NATS.Stream},
	}}})
	if err != nil || !report.OK() {
		t.Errorf("verify = %v, %+v", err, report)
	}
}
