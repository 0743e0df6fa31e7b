package shop

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"net/url"

	"github.com/jackc/pgx/v5"

	"github.com/postrider/postrider/internal/local"
	"github.com/postrider/postrider/internal/manifest"
)

//go:embed orders.sql
var ordersSQL string

//go:embed billing.sql
var billingSQL string

// Prepare makes both databases with their users and the services' own tables, as the superuser that the URL names. The
// outbox and inbox are left to whoever runs the samples.
func Prepare(ctx context.Context, superuserURL string, set *manifest.Set) error {
	for _, database := range []struct{ name, user, tables string }{
		{ordersDatabase, "orders-db", ordersSQL}, {billingDatabase, "billing-db", billingSQL},
	} {
		var logins [2]local.Login
		for i, secret := range []string{database.name + ownerSuffix, database.user} {
			var err error
			if logins[i].Name, logins[i].Password, err = Login(set, secret); err != nil {
				return err
			}
		}
		err := local.EnsureDatabase(ctx, superuserURL, local.Database{Name: database.name, Owner: &logins[0]})
		if err != nil {
			return err
		}
		if err := local.EnsureLogin(ctx, superuserURL, logins[1]); err != nil {
			return err
		}
		if err := runAs(ctx, superuserURL, database.name, logins[0], database.tables); err != nil {
			return fmt.Errorf("make the tables of %s: %w", database.name, err)
		}
	}
	return nil
}

func runAs(ctx context.Context, superuserURL, database string, as local.Login, script string) (err error) {
	target, err := url.Parse(superuserURL)
	if err != nil {
		return errors.New("the superuser's URL is none") // the error would show the password
	}
	target.Path, target.User = "/"+database, url.UserPassword(as.Name, as.Password)
	conn, err := pgx.Connect(ctx, target.String())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	_, err = conn.Exec(ctx, script)
	return err
}
