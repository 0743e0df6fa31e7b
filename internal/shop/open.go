package shop

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postrider/postrider/internal/manifest"
	"github.com/postrider/postrider/internal/up"
	"github.com/postrider/postrider/outbox"
)

// source is the shop's name in its messages.
const source = "shop"

// The databases of the samples and the Secrets that their owners log in with.
const (
	ordersDatabase  = "orders"
	billingDatabase = "billing"
	ownerSuffix     = "-db-owner"
	connections     = 8
)

// Sides are both services, each with a session of its own database's owner.
type Sides struct {
	Orders, Billing *pgxpool.Pool
	// Writer writes the shop's messages.
	Writer *outbox.Writer
}

// Open opens the databases of the samples, which lie in a folder, on the servers that stand in for their hosts.
func Open(ctx context.Context, samples string, e up.Endpoints) (*Sides, error) {
	set, err := Samples(ctx, samples)
	if err != nil {
		return nil, err
	}
	s := &Sides{}
	if s.Writer, err = outbox.New(outbox.Config{Source: source}); err != nil {
		return nil, err
	}
	if s.Orders, err = openAs(ctx, set, e, ordersDatabase); err != nil {
		return nil, err
	}
	if s.Billing, err = openAs(ctx, set, e, billingDatabase); err != nil {
		s.Orders.Close()
		return nil, err
	}
	return s, nil
}

// Close ends the sessions.
func (s *Sides) Close() {
	s.Orders.Close()
	s.Billing.Close()
}

// Samples reads the samples from their folder.
func Samples(ctx context.Context, folder string) (*manifest.Set, error) {
	schemas, err := manifest.LoadSchemas()
	if err != nil {
		return nil, err
	}
	return manifest.Load(ctx, schemas, manifest.Options{}, folder)
}

// Login returns the user and password of a Secret of the samples.
func Login(set *manifest.Set, secret string) (user, password string, err error) {
	for i := range set.Secrets {
		if s := &set.Secrets[i]; s.Name == secret {
			return string(s.Data["username"].Reveal()), string(s.Data["password"].Reveal()), nil
		}
	}
	return "", "", fmt.Errorf("the samples have no Secret %s", secret)
}

func openAs(ctx context.Context, set *manifest.Set, e up.Endpoints, database string) (*pgxpool.Pool, error) {
	user, password, err := Login(set, database+ownerSuffix)
	if err != nil {
		return nil, err
	}
	cfg, err := pgxpool.ParseConfig("postgres://" + e.Postgres + "/" + database)
	if err != nil {
		return nil, fmt.Errorf("settings of database %s: %w", database, err)
	}
	cfg.ConnConfig.User, cfg.ConnConfig.Password = user, password
	cfg.MaxConns = connections
	return pgxpool.NewWithConfig(ctx, cfg)
}
