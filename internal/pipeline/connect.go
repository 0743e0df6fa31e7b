package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/endpoint"
	"github.com/postrider/postrider/internal/broker/nats"
	"github.com/postrider/postrider/internal/config"
	"github.com/postrider/postrider/internal/postgres"
	"github.com/postrider/postrider/internal/statusz"
)

// closeTimeout bounds the last words to the broker.
const closeTimeout = 5 * time.Second

// openPool opens a pool. It dials nothing. keepStatements is for statements that are all our own, on tables of ours.
func openPool(
	ctx context.Context, cfg config.Postgres, name string, keepStatements bool, o Options,
) (*postgres.Pool, error) {
	pool, err := postgres.Open(ctx, cfg, postgres.Options{
		ApplicationName: "postrider " + name,
		AllowLoopback:   o.AllowLoopback,
		Log:             o.Log,
		KeepStatements:  keepStatements,
	})
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	return pool, nil
}

// dialNATS connects in the background.
func dialNATS(ctx context.Context, cfg *config.NATS, name string, log *slog.Logger) (*nats.Conn, error) {
	conn, err := nats.Dial(ctx, nats.Config{
		Servers: cfg.Servers, Stream: cfg.Stream, Topology: nats.Topology(cfg.Topology),
		CredentialsDir: cfg.CredentialsDir, Name: name, Log: log,
		TLS: endpoint.TLS{
			Mode: endpoint.TLSMode(cfg.TLS.Mode), CAFile: cfg.TLS.CAFile,
			ClientCertificateDir: cfg.TLS.ClientCertificateDir,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("dial NATS: %w", err)
	}
	return conn, nil
}

// bound gives a context to words that are said when the caller's has ended.
type bound func(time.Duration) (context.Context, context.CancelFunc)

// outliving returns contexts with the values of ctx and an end of their own.
func outliving(ctx context.Context) bound {
	return func(d time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.WithoutCancel(ctx), d)
	}
}

// closeSoon runs a close within its time. What does not answer by then is cut.
func closeSoon(ctx context.Context, log *slog.Logger, closing func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := closing(ctx); err != nil {
		log.InfoContext(ctx, "A connection to the broker was cut", "err", err)
	}
}

// cut ends a connection without a word.
func cut(within bound, closing func(context.Context) error) {
	ctx, cancel := within(0)
	defer cancel()
	_ = closing(ctx) // the end of the context is the point
}

// warn puts what may hurt later into a report: what can lose or reorder messages is a condition, the rest is told by the
// log.
func warn(r *statusz.Report, warnings []broker.Warning, others []statusz.Condition) {
	for _, w := range slices.Backward(warnings) { // of one condition's, the first stays
		switch w.Reason { //nolint:exhaustive // the rest
		case broker.WarnMayDiscard, broker.WarnFewReplicas:
			setCondition(r, condition(targetMayDiscard, statusTrue, string(w.Reason), w.Detail))
		case broker.WarnPartitions:
			setCondition(r, condition(partitionCountChanged, statusTrue, "KeysMoved", w.Detail))
		}
	}
	for _, c := range others {
		setCondition(r, c)
	}
}

// insecure puts a warning into a report for each connection that is plain text.
func insecure(r *statusz.Report, database config.Postgres, atBroker config.TLS) {
	var plain string
	switch {
	case database.TLS.Mode == config.TLSInsecure && atBroker.Mode == config.TLSInsecure:
		plain = "database and broker"
	case database.TLS.Mode == config.TLSInsecure:
		plain = "database"
	case atBroker.Mode == config.TLSInsecure:
		plain = "broker"
	default:
		return
	}
	setCondition(r, condition(insecureTransport, statusTrue, "PlainText",
		"credentials and messages travel to the "+plain+" in plain text: set tls.mode to VerifyFull"))
}
