package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/outbox"
	"github.com/postrider/postrider/test/testkit"
)

var errRollback = errors.New("rolled back on purpose")

// state returns the SQLSTATE of an error.
func state(err error) string {
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pg.Code
	}
	return ""
}

// Writers of the library and of the function share keys; a third of the transactions and of the savepoints roll back.
func TestVersionsAreDenseWhateverRollsBack(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	keys := []string{"a", "B", "c", "Ä"}
	var committed atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	for n := range 6 {
		group.Go(func() error {
			rng := rand.New(rand.NewPCG(7, uint64(n)))
			for range 60 {
				count, err := randomTransaction(ctx, d, w, rng, keys)
				if err != nil && !errors.Is(err, errRollback) {
					return err
				}
				if err == nil {
					committed.Add(count)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if got := int64(len(d.rows())); got != committed.Load() || got == 0 {
		t.Errorf("rows = %d, want the %d committed", got, committed.Load())
	}
	if n := d.holes(); n != 0 {
		t.Errorf("%d messages have a version that is not dense in the order of positions", n)
	}
}

// randomTransaction writes to one or two keys, some of it in savepoints, and returns how much it kept.
func randomTransaction(
	ctx context.Context,
	d *tables,
	w *outbox.Writer,
	rng *rand.Rand,
	keys []string,
) (kept int64, err error) {
	key := keys[rng.IntN(len(keys))]
	err = d.inTx(ctx, func(tx pgx.Tx) error {
		if rng.IntN(2) == 0 {
			if err := writeInSavepoint(ctx, tx, w, key, rng.IntN(3) == 0, &kept); err != nil {
				return err
			}
		}
		if rng.IntN(2) == 0 {
			if _, err := tx.Exec(
				ctx,
				`SELECT message_outbox_write($1, 'order.paid', '\x00', 'shop')`,
				key,
			); err != nil {
				return err
			}
			kept++
		} else {
			if _, err := w.Write(ctx, tx, order(key, "1"), order(key, "2")); err != nil {
				return err
			}
			kept += 2
		}
		if rng.IntN(3) == 0 {
			return errRollback
		}
		return nil
	})
	return kept, err
}

func writeInSavepoint(ctx context.Context, tx pgx.Tx, w *outbox.Writer, key string, undo bool, kept *int64) error {
	err := pgx.BeginFunc(ctx, tx, func(nested pgx.Tx) error {
		if _, err := w.Write(ctx, nested, order(key, "nested")); err != nil {
			return err
		}
		if undo {
			return errRollback
		}
		*kept++
		return nil
	})
	if errors.Is(err, errRollback) {
		return nil
	}
	return err
}

// Whoever gets version n+1 of a key gets it after the transaction of n has begun to commit: so position order is
// commit order, and nothing of a key can appear below what is already visible.
func TestPositionOrderIsCommitOrderPerKey(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	const writers, each = 6, 40
	var committing sync.Map // version → true, set before COMMIT is sent
	group, ctx := errgroup.WithContext(t.Context())
	for range writers {
		group.Go(func() error {
			for range each {
				tx, err := d.Pool().Begin(ctx)
				if err != nil {
					return err
				}
				written, err := w.Write(ctx, tx, order("k", ""))
				if err != nil {
					return errors.Join(err, tx.Rollback(ctx))
				}
				version := written[0].Version
				if _, ok := committing.Load(version - 1); version > 1 && !ok {
					return errors.Join(
						fmt.Errorf("version %d was given before %d committed", version, version-1),
						tx.Rollback(ctx),
					)
				}
				committing.Store(version, true)
				if err := tx.Commit(ctx); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n, rows := d.holes(), len(d.rows()); n != 0 || rows != writers*each {
		t.Errorf("%d rows, %d of them with a version out of the order of positions", rows, n)
	}
}

// inOppositeOrder runs two transactions that write a and b, and b and a, each having written one before the other
// writes its second, if nothing makes them wait.
func inOppositeOrder(
	t *testing.T,
	d *tables,
	write func(ctx context.Context, tx pgx.Tx, first, second string, met func()) error,
) (errs [2]error) {
	t.Helper()
	var meet sync.WaitGroup
	meet.Add(2)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var running sync.WaitGroup
	for i, keys := range [2][2]string{{"a", "b"}, {"b", "a"}} {
		running.Go(func() {
			met := sync.OnceFunc(func() {
				meet.Done()
				meet.Wait()
			})
			errs[i] = d.inTx(ctx, func(tx pgx.Tx) error { return write(ctx, tx, keys[0], keys[1], met) })
		})
	}
	running.Wait()
	return errs
}

func TestTwoCallsInOppositeOrderDeadlock(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	errs := inOppositeOrder(t, d, func(ctx context.Context, tx pgx.Tx, first, second string, met func()) error {
		if _, err := w.Write(ctx, tx, order(first, "")); err != nil {
			return err
		}
		met()
		_, err := w.Write(ctx, tx, order(second, ""))
		return err
	})
	if (state(errs[0]) == "40P01") == (state(errs[1]) == "40P01") {
		t.Errorf("errors = %v, want one deadlock, as the documentation says", errs)
	}
}

func TestCollectorsInOppositeOrderDoNotDeadlock(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	for range 20 {
		errs := inOppositeOrder(t, d, func(ctx context.Context, tx pgx.Tx, first, second string, met func()) error {
			c := w.Collect()
			for _, key := range []string{first, second} {
				if _, err := c.Add(order(key, "")); err != nil {
					return err
				}
			}
			met()
			_, err := c.Flush(ctx, tx)
			return err
		})
		if errs[0] != nil || errs[1] != nil {
			t.Fatalf("errors = %v, want none", errs)
		}
	}
	if n := d.holes(); n != 0 {
		t.Errorf("%d versions are not dense", n)
	}
}

// Many keys whose order by bytes and by a language differ, in calls with and without versions of their own.
func TestManyKeysInOneCallDoNotDeadlock(t *testing.T) {
	t.Parallel()
	d := newTables(t)
	w := d.writer()
	keys := []string{"a", "B", "c", "D", "ä", "Z", "_", "10", "9"}
	group, ctx := errgroup.WithContext(t.Context())
	for n := range 6 {
		group.Go(func() error {
			rng := rand.New(rand.NewPCG(1, uint64(n)))
			for range 30 {
				var msgs []outbox.Message
				for _, i := range rng.Perm(len(keys))[:5] {
					msgs = append(msgs, order(keys[i], ""))
				}
				if rng.IntN(3) == 0 {
					own := order(fmt.Sprintf("own-%d", n), "")
					err := d.Pool().QueryRow(ctx, `SELECT coalesce(max(last), 0) + 1 FROM message_outbox_sequence
					  WHERE ordering_key = $1`, own.OrderingKey).Scan(&own.Version)
					if err != nil {
						return err
					}
					msgs = append(msgs, own)
				}
				if err := d.inTx(ctx, func(tx pgx.Tx) error {
					_, err := w.Write(ctx, tx, msgs...)
					return err
				}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if n := d.holes(); n != 0 {
		t.Errorf("%d versions are not dense", n)
	}
}

// SERIALIZABLE as the database's default: a shared key ends in 40001, and the whole transaction run again succeeds.
func TestSerializableCallersRetry(t *testing.T) {
	t.Parallel()
	d := newTables(t, testkit.Serializable())
	w := d.writer()
	var conflicts atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	const writers, each = 4, 15
	for range writers {
		group.Go(func() error {
			for range each {
				for {
					err := d.inTx(ctx, func(tx pgx.Tx) error {
						_, err := w.Write(ctx, tx, order("k", ""))
						return err
					})
					if err == nil {
						break
					}
					if state(err) != "40001" {
						return err
					}
					conflicts.Add(1)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	if conflicts.Load() == 0 {
		t.Error("no conflict was seen: this test shows nothing")
	}
	if n, rows := d.holes(), len(d.rows()); n != 0 || rows != writers*each {
		t.Errorf("%d rows with %d holes, want %d without", rows, n, writers*each)
	}
}

// A stored generated column in a primary key makes PostgreSQL 18 refuse every DELETE under such a publication.
func TestRowsCanBeDeletedUnderAPublicationOfAllTables(t *testing.T) {
	t.Parallel()
	for name, option := range publicationServers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newTables(t, option...)
			d.Exec("CREATE PUBLICATION everything FOR ALL TABLES")
			written, err := d.write(d.writer(), order("a", ""), order("a", ""))
			if err != nil {
				t.Fatal(err)
			}
			if n := d.Exec("DELETE FROM message_outbox WHERE event_id = $1", written[0].EventID.String()); n != 1 {
				t.Errorf("deleted %d rows, want 1", n)
			}
			if n := d.Exec("UPDATE message_outbox SET held = true"); n != 1 {
				t.Errorf("updated %d rows, want 1", n)
			}
			d.Exec("UPDATE message_outbox_sequence SET last = last + 1")
			d.Exec("TRUNCATE message_outbox_published_1")
			if got := testkit.Value[string](
				d.DB,
				`SELECT uuid_send(id)::text FROM message_outbox_write('b', 'order.paid', 'x', 'shop')`,
			); got[14:16] != "7"+got[15:16] {
				t.Errorf("id = %s, want a version 7 UUID", got)
			}
		})
	}
}
