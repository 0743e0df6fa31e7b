package pipeline

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/statusz"
)

const (
	// blockedAfter is how long one holder may hold back the cleaning of dead rows, and manyDead how many may be there,
	// before a person should know. Reports and long statements take minutes; ten thousand rows are what a read passes
	// over in milliseconds.
	blockedAfter = 10 * time.Minute
	manyDead     = 10_000

	// A certificate expires soon when less than this is left of it, or than a fifth of its life where that is shorter: who
	// renews by itself has done so before.
	expirySoon     = 14 * 24 * time.Hour
	lastPartOfLife = 5

	surveyTimeout = 5 * time.Second
)

// outlook looks at the database and at certificates from time to time: what about them may hurt later.
type outlook struct {
	survey   func(context.Context) (postgres.Survey, error)
	database config.Postgres
	atBroker config.TLS // how its connections are secured
	now      func() time.Time

	mu      sync.Mutex
	seen    postgres.Survey
	at      time.Time            // when that was seen
	since   map[string]time.Time // when each holder was seen first
	expires string
}

func newOutlook(pool *postgres.Pool, table string, database config.Postgres, atBroker config.TLS) *outlook {
	return &outlook{
		survey: func(ctx context.Context) (postgres.Survey, error) {
			ctx, cancel := context.WithTimeout(ctx, surveyTimeout)
			defer cancel()
			return postgres.Look(ctx, pool.Pool, table)
		},
		database: database, atBroker: atBroker, now: time.Now,
	}
}

// follow looks until ctx ends, and logs each kind of warning when it begins to hold.
func (o *outlook) follow(ctx context.Context, log *slog.Logger) {
	told := make(map[string]bool)
	everySoOften(ctx, func() time.Duration {
		o.look(ctx)
		now := make(map[string]bool)
		for _, c := range o.conditions() {
			if now[c.Type] = true; !told[c.Type] {
				log.WarnContext(
					ctx,
					"Something may hurt later",
					"type",
					c.Type,
					"reason",
					c.Reason,
					"detail",
					c.Message,
				)
			}
		}
		told = now
		return checkPeriod
	})
}

// look keeps what it saw before where it cannot see: that the database does not answer is told elsewhere.
func (o *outlook) look(ctx context.Context) {
	seen, err := o.survey(ctx)
	now := o.now()
	expires := soonest(now, o.database.TLS, o.atBroker)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expires = expires
	if err != nil {
		return
	}
	since := make(map[string]time.Time, len(seen.Holders))
	for _, h := range seen.Holders {
		since[h.ID] = now
		if at, known := o.since[h.ID]; known {
			since[h.ID] = at
		}
	}
	o.seen, o.at, o.since = seen, now, since
}

// blocking returns what has held back cleaning most, and for long, nil where nothing has.
func (o *outlook) blocking() *postgres.Holder {
	if len(o.seen.Holders) == 0 || o.seen.DeadRows < manyDead {
		return nil
	}
	h := &o.seen.Holders[0]
	if o.at.Sub(o.since[h.ID]) < blockedAfter {
		return nil
	}
	return h
}

// forgetful says why the database may lose what it committed, nothing where it should not. A single host has no copy that
// could take over, as far as anybody here knows.
func (o *outlook) forgetful() (reason, message string) {
	switch loose := o.seen.Loose; {
	case len(loose) > 0:
		return "SettingsOff", "after a crash the server may lack what it said was committed, and a broker may have it: " +
			"set to on: " + strings.Join(
			loose,
			", ",
		)
	case o.seen.Alone && len(o.database.Hosts) > 1:
		return "AsynchronousStandby", "commits wait for no copy: a host that takes over may lack what was committed, unless " +
			"it shares the storage, and a broker may have it. Set synchronous_standby_names, and synchronous_commit to on"
	default:
		return "", ""
	}
}

// conditions are the warnings that hold. Their words do not change while the cause does not: each change would be written.
func (o *outlook) conditions() []statusz.Condition {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []statusz.Condition
	if reason, message := o.forgetful(); reason != "" {
		out = append(out, condition(nonDurableDatabase, statusTrue, reason, message))
	}
	if h := o.blocking(); h != nil {
		out = append(out, condition(vacuumBlocked, statusTrue, "OldTransaction", fmt.Sprintf(
			"%s has been there for %v or longer: more than %d dead rows cannot be cleaned away, and reads pass over them. "+
				"Look why it is there, or end it: %s",
			h.What,
			blockedAfter,
			manyDead,
			h.Remedy,
		)))
	}
	if o.expires != "" {
		out = append(out, condition(certificateExpiring, statusTrue, "ExpiresSoon", o.expires))
	}
	return out
}

// soonest says which certificate of the connections' files expires soonest, if one does soon; else it is empty.
func soonest(now time.Time, connections ...config.TLS) string {
	var first time.Time
	var words string
	note := func(file string, c *x509.Certificate) {
		if nearEnd(now, c) && (words == "" || c.NotAfter.Before(first)) {
			first, words = c.NotAfter, fmt.Sprintf(
				"what %s holds expires at %s: renew it",
				file,
				c.NotAfter.UTC().Format(time.RFC3339),
			)
		}
	}
	for _, c := range connections {
		if c.Mode == config.TLSInsecure {
			continue
		}
		if all := certificates(c.CAFile); len(all) > 0 {
			// Of authorities one that lasts is enough: the old and the new one are there together in a rotation.
			note(
				c.CAFile,
				slices.MaxFunc(all, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) }),
			)
		}
		if c.ClientCertificateDir == "" {
			continue
		}
		file := filepath.Join(c.ClientCertificateDir, "tls.crt")
		if all := certificates(file); len(all) > 0 {
			note(file, all[0]) // the client's own: the others are those above it
		}
	}
	return words
}

func nearEnd(now time.Time, c *x509.Certificate) bool {
	return c.NotAfter.Sub(now) < min(expirySoon, c.NotAfter.Sub(c.NotBefore)/lastPartOfLife)
}

// certificates reads a PEM file. What is no certificate is told by who connects with it.
func certificates(file string) []*x509.Certificate {
	rest, err := os.ReadFile(file) //nolint:gosec // the resource names it
	if err != nil {
		return nil
	}
	var all []*x509.Certificate
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return all
		}
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" {
			all = append(all, c)
		}
	}
}
