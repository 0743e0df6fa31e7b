package pipeline_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/postgres/schema"
	"github.com/postrider/postrider/test/brokers"
	"github.com/postrider/postrider/test/testkit"
)

const (
	databaseRefuses = "New database credentials do not work"
	databaseTaken   = "Database credentials changed, connections are replaced"
)

// secured is a relay whose database speaks TLS and knows it by a password, both of which change.
type secured struct {
	*rotation

	dir  string // the server's certificate
	user string
}

// newSecured starts a server with TLS, and a relay that has the rights it needs and no more.
func newSecured(t *testing.T, password string) *secured {
	t.Helper()
	s := &secured{dir: testkit.SharedDir(t)}
	first := s.authority(t)
	s.present(t, first)
	server := testkit.PostgresServer(t, local.PostgresConfig{Parameters: map[string]string{
		"ssl": "on", "ssl_cert_file": s.file("server.crt"), "ssl_key_file": s.file("server.key"),
	}})
	o := newOrders(t, testkit.OnServer(server))
	s.user = "relay_" + o.db.Schema
	o.db.Exec(fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s'", s.user, password))
	names := postgres.Names{Schema: o.db.Schema, Outbox: "message_outbox"}
	for _, grant := range schema.Grants(names, schema.RoleRelay, s.user) {
		o.db.Exec(grant)
	}
	trusted := filepath.Join(t.TempDir(), "ca.crt")
	write(t, trusted, read(t, first.CA))
	o.cfg.Source.CredentialsDir = testkit.SecretDir(t, s.user, password)
	o.cfg.Source.TLS = config.TLS{Mode: config.TLSVerifyFull, CAFile: trusted}
	o.cfg.Lease, o.cfg.Batch.PublishTimeout = config.Duration(30*time.Second), slow
	s.rotation = o.rotate(o.cfg)
	return s
}

func (*secured) authority(t *testing.T) brokers.PKI {
	t.Helper()
	made, err := brokers.NewPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func (s *secured) file(name string) string { return filepath.Join(s.dir, name) }

// present puts a certificate where the server reads it when it is told to.
func (s *secured) present(t *testing.T, by brokers.PKI) {
	t.Helper()
	for to, from := range map[string]string{"server.crt": by.ServerCert, "server.key": by.ServerKey} {
		write(t, s.file(to), read(t, from))
		testkit.ForPostgres(t, s.file(to))
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// change is one that server and Secret have to make, and what the relay says while only the server has.
type change struct {
	server, secret func()
	refused        string
}

func (s *secured) password(next string) change {
	return change{
		server:  func() { s.db.Exec(fmt.Sprintf("ALTER ROLE %s PASSWORD '%s'", s.user, next)) },
		secret:  func() { write(s.t, filepath.Join(s.cfg.Source.CredentialsDir, "password"), next) },
		refused: "False AuthFailed",
	}
}

func (s *secured) certificate() change {
	next := s.authority(s.t)
	return change{
		server:  func() { s.present(s.t, next); s.db.Exec("SELECT pg_reload_conf()") },
		secret:  func() { write(s.t, s.cfg.Source.TLS.CAFile, read(s.t, next.CA)) },
		refused: "False TLSFailed",
	}
}

// sessions names the connections of the relay, all of which must speak TLS.
func (s *secured) sessions() []string {
	s.t.Helper()
	if testkit.Value[bool](s.db, `SELECT EXISTS (SELECT FROM pg_stat_activity JOIN pg_stat_ssl USING (pid)
		WHERE usename = $1 AND NOT ssl)`, s.user) {
		s.t.Error("the relay has a session without TLS")
	}
	return testkit.Values[string](s.db,
		`SELECT pid || ' of ' || backend_start FROM pg_stat_activity WHERE usename = $1`, s.user)
}

// goesOn waits until more is published.
func (s *secured) goesOn() {
	s.t.Helper()
	before := testkit.Value[int](s.db, "SELECT count(*) FROM message_outbox_published")
	s.flow("messages go on", func() bool {
		return testkit.Value[int](s.db, "SELECT count(*) FROM message_outbox_published") > before+30
	})
}

// secretFirst changes the Secret before the server: open sessions are used until what is new works, and then closed.
func (s *secured) secretFirst(c change) {
	s.t.Helper()
	s.says(c.secret, databaseRefuses)
	s.goesOn()
	before := s.sessions()
	if len(before) == 0 {
		s.t.Fatal("the relay has no session: this test sees none")
	}
	s.says(c.server, databaseTaken)
	s.closed(before)
	s.goesOn()
}

// serverFirst changes the server before the Secret: open sessions are used, and when they end there is no other until
// the Secret is changed.
func (s *secured) serverFirst(c change) {
	s.t.Helper()
	c.server()
	s.goesOn()
	before := s.sessions()
	s.db.Exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", s.user)
	s.life.becomes("DatabaseReachable", c.refused)
	s.db.Uncounted()
	s.says(c.secret, databaseTaken)
	s.closed(before)
	s.goesOn()
	s.life.becomes("DatabaseReachable", "True Reachable")
}

// closed waits until sessions from before have ended.
func (s *secured) closed(before []string) {
	s.t.Helper()
	testkit.Eventually(s.t, renewed, "the sessions from before are closed", func() bool {
		return !slices.ContainsFunc(s.sessions(), func(is string) bool { return slices.Contains(before, is) })
	})
}

// P18: the password and the CA of the database are replaced under a running relay, each in both orders.
func TestARelayTakesNewCredentialsOfPostgreSQLWithoutALoss(t *testing.T) {
	t.Parallel()
	s := newSecured(t, "canary-1")
	s.secretFirst(s.password("canary-2"))
	s.serverFirst(s.password("canary-3"))
	s.secretFirst(s.certificate())
	s.serverFirst(s.certificate())
	s.everything()
	s.db.Uncounted()
	if report := s.verified(); !report.OK() {
		t.Errorf("verify: %+v", report)
	}
}
