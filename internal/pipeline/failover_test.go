package pipeline_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/verify"
	"github.com/postrider/postrider/test/testkit"
)

// copyHost is where the copy of a server listens; at the same port, as another machine would.
const copyHost = "127.0.0.2"

// primaryWithCopy starts a PostgreSQL and a streaming copy of it, which gets over the way what the primary writes.
func primaryWithCopy(t *testing.T) (primary *local.Postgres, dir string, way *testkit.Faulty) {
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
	way = testkit.Proxy(t, net.JoinHostPort(primary.Host(), strconv.Itoa(primary.Port())))
	testkit.PostgresServer(t, local.PostgresConfig{Dir: other, Parameters: map[string]string{
		"listen_addresses": copyHost, "port": strconv.Itoa(primary.Port()),
		"primary_conninfo": fmt.Sprintf("host=%s port=%d user=%s password=%s", way.Host, way.Port,
			primary.User(), primary.Password()),
	}})
	return primary, dir, way
}

// returns starts a killed server again when the test ends, for what cleans up there.
func returns(t *testing.T, primary *local.Postgres, dir string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = os.Remove(filepath.Join(dir, "data", "postgresql.auto.conf")) // the next commit would wait for the copy
		_ = primary.Start(ctx)                                            // it may not have been killed
	})
}

// takesOver has the copy take the place of the primary, which is lost.
func (o *orders) takesOver(primary *local.Postgres) {
	o.t.Helper()
	if err := primary.Kill(o.t.Context()); err != nil {
		o.t.Fatal(err)
	}
	o.db = o.db.At(copyHost, primary.Port())
	if !testkit.Value[bool](o.db, `SELECT pg_promote(true, 60)`) {
		o.t.Fatal("the copy was not promoted")
	}
}

// verified holds the table to the stream.
func (o *orders) verified() verify.Report {
	o.t.Helper()
	report, err := verify.Run(o.t.Context(), verify.Input{Grace: time.Minute, Relays: []verify.Relay{{
		Name: "relay", Pool: o.db.Pool(), Tables: postgres.Names{Schema: o.db.Schema, Outbox: "message_outbox"},
		Stream: verify.Stream{JS: o.broker.JetStream(), Name: o.cfg.NATS.Stream},
	}}})
	if err != nil {
		o.t.Fatal(err)
	}
	return report
}

// The database's machine is lost and its copy is promoted: relays find it by themselves, what was committed is
// published, and each shard has one owner.
func TestRelaysFollowTheDatabaseToItsPromotedCopy(t *testing.T) {
	t.Parallel()
	primary, dir, _ := primaryWithCopy(t)
	o := newOrders(t, testkit.OnServer(primary))
	returns(t, primary, dir)
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
	if o.log.Contains("commits wait for no copy") { // which is said at the start
		t.Error("told of commits that wait for no copy, and they do")
	}
	o.write(200) // on their way when the machine is lost

	o.takesOver(primary)
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
	if report := o.verified(); !report.OK() {
		t.Errorf("verify: %+v", report)
	}
}

// P12: the copy that is promoted lacks the last commits, and with them rows that are published. Their events cannot be
// called back, and verify names them. Nothing wedges: the rows that are written next have the same versions and positions
// as those that are gone, and all of them are published, in order.
func TestRelaysGoOnWithACopyThatLacksTheLastCommits(t *testing.T) {
	t.Parallel()
	const before, lost, after = 60, 20, 90
	primary, dir, way := primaryWithCopy(t)
	o := newOrders(t, testkit.OnServer(primary))
	returns(t, primary, dir)
	o.cfg.Source.Hosts = []string{primary.Host(), copyHost}
	_, first := o.start(o.cfg)
	o.start(o.cfg)
	o.write(before)
	o.published(before)
	lagging := o.db.At(copyHost, primary.Port())
	testkit.Eventually(t, 2*patience, "the copy has them as published", func() bool {
		var n int
		err := lagging.Pool().QueryRow(t.Context(), `SELECT count(*) FROM message_outbox_published`).Scan(&n)
		return err == nil && n == before
	})
	way.Cut()
	o.write(lost)
	o.published(before + lost)
	known := testkit.Values[string](o.db, `SELECT event_id::text FROM message_outbox_published`)

	o.takesOver(primary)
	if n := testkit.Value[int](o.db, `SELECT count(*) FROM message_outbox_published`); n != before {
		t.Fatalf("the copy has %d published rows, want the %d from before it was cut off", n, before)
	}
	o.write(after)
	o.published(before + after)
	first.becomes("DatabaseReachable", "True Reachable")
	first.becomes("NonDurableDatabase", "True AsynchronousStandby")

	kept := testkit.Values[string](o.db, `SELECT event_id::text FROM message_outbox_published`)
	ghosts := slices.DeleteFunc(known, func(id string) bool { return slices.Contains(kept, id) })
	slices.Sort(ghosts)
	if diff := cmp.Diff(ghosts, o.orderedBut(kept)); diff != "" || len(ghosts) != lost {
		t.Errorf("%d events are lost in the database; in the stream only (-want +got):\n%s", len(ghosts), diff)
	}
	named := false
	for _, c := range o.verified().Sections[0].Checks {
		phantom := c.Title == "nothing is in the stream without a committed row"
		if named = named || phantom && c.Broken == lost; c.Result == verify.Broken && !phantom && c.Promise != "G4" {
			t.Errorf("verify: %+v", c)
		}
	}
	if !named {
		t.Errorf("verify does not name the %d events without a row", lost)
	}
}

// orderedBut checks that events of the archive are in the stream in their keys' order, and returns what else is there.
func (o *orders) orderedBut(archived []string) (others []string) {
	o.t.Helper()
	stream, err := o.broker.JetStream().Stream(o.t.Context(), o.cfg.NATS.Stream)
	if err != nil {
		o.t.Fatal(err)
	}
	versions := make(map[string]int)
	for sequence := uint64(1); sequence <= stream.CachedInfo().State.LastSeq; sequence++ {
		m, err := stream.GetMsg(o.t.Context(), sequence)
		if err != nil {
			o.t.Fatal(err)
		}
		id, key := m.Header.Get(message.HeaderEventID), m.Header.Get(message.HeaderOrderingKey)
		version, err := strconv.Atoi(m.Header.Get(message.HeaderAggregateVersion))
		switch {
		case err != nil:
			o.t.Fatal(err)
		case !slices.Contains(archived, id):
			others = append(others, id)
		case version == versions[key]+1:
			versions[key]++
		case version > versions[key]:
			o.t.Errorf("version %d of key %s comes after %d", version, key, versions[key])
		}
	}
	slices.Sort(others)
	return slices.Compact(others)
}
