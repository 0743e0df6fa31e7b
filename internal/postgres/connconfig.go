package postgres

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/config"
)

const (
	connectTimeout  = 10 * time.Second
	pingTimeout     = 5 * time.Second
	connLifetime    = 30 * time.Minute
	connLifeJitter  = 5 * time.Minute
	connIdleTime    = 5 * time.Minute
	healthPeriod    = 30 * time.Second
	maxHosts        = 5
	readOnlyState   = "25006"
	maxMessageBytes = 256 << 20 // a server that announces a larger message is refused before anything is allocated
)

// neutral answers every key that pgx would otherwise look up in the environment or in files, so that
// parsing it depends on nothing. What it says is replaced afterwards.
const neutral = "host=invalid port=5432 dbname=invalid user=invalid password=invalid passfile='' " +
	"sslmode=disable sslcert='' sslkey='' sslrootcert='' sslpassword='' sslcertmode=allow sslsni=1 " +
	"sslnegotiation=postgres connect_timeout=10 target_session_attrs=read-write options='' " +
	"min_protocol_version=3.0 max_protocol_version=3.0 channel_binding=prefer require_auth='' " +
	"pool_max_conns=1"

// validate refuses settings that would change their meaning on the way to the server.
func validate(cfg config.Postgres) error {
	if len(cfg.Hosts) == 0 || len(cfg.Hosts) > maxHosts {
		return fmt.Errorf("hosts: %d given, want 1 to %d", len(cfg.Hosts), maxHosts)
	}
	for _, h := range cfg.Hosts {
		if h == "" || strings.ContainsAny(h, "/\\, \t\r\n@?=") {
			return errors.New("hosts: a host is a name or an IP address, without scheme, port or path")
		}
	}
	if cfg.Port < 1 || cfg.Port > 65535 {
		return fmt.Errorf("port: %d is not a port", cfg.Port)
	}
	if cfg.Database == "" || strings.ContainsRune(cfg.Database, 0) {
		return errors.New("database: a name is missing")
	}
	if cfg.CredentialsDir == "" {
		return errors.New("credentialsDir: a directory is missing")
	}
	if cfg.MaxConnections < 1 {
		return fmt.Errorf("maxConnections: %d is less than 1", cfg.MaxConnections)
	}
	switch cfg.TLS.Mode {
	case tlsVerifyFull, tlsVerifyCA, tlsInsecure:
		return nil
	default:
		return fmt.Errorf("tls.mode: %q is not VerifyFull, VerifyCA or Insecure", cfg.TLS.Mode)
	}
}

// poolConfig builds pgx's configuration from typed fields only. No connection string of a user exists,
// so there are no parameters to smuggle, and neither environment nor home directory has a say.
func poolConfig(cfg config.Postgres, o Options) (*pgxpool.Config, error) {
	// The one variable that a connection string cannot answer: with it set, pgx reads a service file.
	if _, set := os.LookupEnv("PGSERVICE"); set {
		if err := os.Unsetenv("PGSERVICE"); err != nil {
			return nil, fmt.Errorf("ignore PGSERVICE: %w", err)
		}
	}
	pc, err := pgxpool.ParseConfig(neutral)
	if err != nil {
		return nil, errors.New("pgx does not accept the neutral configuration") // its text may quote the environment
	}
	c := pc.ConnConfig
	c.Port, c.Database = uint16(cfg.Port), cfg.Database //nolint:gosec // validate checked the range
	c.ConnectTimeout = connectTimeout
	c.DialFunc = newDialer(o.AllowLoopback, connectTimeout).DialContext
	c.RuntimeParams = map[string]string{"application_name": o.ApplicationName}
	maps.Copy(c.RuntimeParams, o.RuntimeParams)
	c.MaxProtocolMessageBodyLen = maxMessageBytes
	c.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	// Unnamed statements: a transaction-mode pooler gives each transaction another session. See sessions.
	c.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	c.OnPgError = keepConnection
	pc.MaxConns = cfg.MaxConnections
	pc.MaxConnLifetime, pc.MaxConnLifetimeJitter = connLifetime, connLifeJitter
	pc.MaxConnIdleTime, pc.HealthCheckPeriod, pc.PingTimeout = connIdleTime, healthPeriod, pingTimeout
	pc.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		m, err := readMaterial(cfg)
		if err != nil {
			return err
		}
		return fill(c, cfg, m)
	}
	return pc, nil
}

// keepConnection says whether a connection is good after an error of the server. One that turned read-only
// leads to a server that lost its role: the next connect resolves again and looks for the writable one.
func keepConnection(_ *pgconn.PgConn, e *pgconn.PgError) bool {
	severity := e.SeverityUnlocalized
	if severity == "" {
		severity = e.Severity
	}
	return severity != "FATAL" && severity != "PANIC" && e.Code != readOnlyState
}

// fill writes hosts, credentials and certificates into a connection's configuration.
func fill(c *pgx.ConnConfig, cfg config.Postgres, m material) error {
	c.User, c.Password = m.username, m.password
	template, err := tlsTemplate(cfg.TLS, m)
	if err != nil {
		return err
	}
	c.Host, c.TLSConfig = cfg.Hosts[0], tlsFor(template, cfg.Hosts[0])
	c.Fallbacks = nil
	for _, h := range cfg.Hosts[1:] {
		c.Fallbacks = append(c.Fallbacks, &pgconn.FallbackConfig{
			Host: h, Port: c.Port, TLSConfig: tlsFor(template, h),
		})
	}
	return nil
}
