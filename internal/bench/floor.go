package bench

import (
	"context"
	"crypto/rand"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/postrider/postrider/internal/lease"
	"github.com/postrider/postrider/internal/message"
	"github.com/postrider/postrider/internal/postgres/outboxdb"
	"github.com/postrider/postrider/internal/shard"
)

const (
	relayName     = "bench/drain"
	leaseDuration = time.Hour // no contestant loses a lease
	queryTimeout  = time.Minute
	maxBytes      = 4 << 20
	// pollInterval and statusInterval are what a resource has by default.
	pollInterval   = 200 * time.Millisecond
	statusInterval = 15 * time.Second
	// emptyPause is how long a reader waits that found nothing while rows are still in flight.
	emptyPause = time.Millisecond
)

// store returns the product's statements for a process of its own.
func (t *table) store() (*outboxdb.Store, [16]byte, error) {
	var holder [16]byte
	_, _ = rand.Read(holder[:]) // never fails
	s, err := outboxdb.New(t.product, outboxdb.Config{
		Names:        t.names,
		Relay:        relayName,
		RelayUID:     "bench",
		Holder:       holder,
		Shards:       t.shards,
		QueryTimeout: queryTimeout,
	})
	if err != nil {
		return nil, holder, fmt.Errorf("make a store: %w", err)
	}
	return s, holder, nil
}

// floorDrain is the product's read and settle without everything around them: no retries, no witness, no members, no
// metrics. What the relay loses against it is the price of its own code.
func floorDrain(ctx context.Context, t *table) (time.Duration, error) {
	store, _, err := t.store()
	if err != nil {
		return 0, err
	}
	if _, err := store.Join(ctx, leaseDuration); err != nil {
		return 0, err
	}
	started := time.Now()
	lanes, ctx := errgroup.WithContext(ctx)
	for s := range int16(t.shards) { //nolint:gosec // a few
		lanes.Go(func() error {
			l, ok, err := store.Acquire(ctx, s, leaseDuration)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("shard %d is another's", s)
			}
			return newFloorLane(t, store, l).run(ctx)
		})
	}
	err = lanes.Wait()
	return time.Since(started), err
}

// floorLane drains one shard.
type floorLane struct {
	store *outboxdb.Store
	lease lease.Lease
	batch int

	mu    sync.Mutex
	floor message.Position // nothing unknown can appear at or below it
	read  message.Position // the highest position read
	// known are the positions in flight, and those settled since the last read began: its snapshot may still show them.
	known   map[message.Position]bool
	settled []message.Position
	// Once a snapshot shows every transaction up to noteXid as ended, noteAt is the floor.
	noteAt  message.Position
	noteXid uint64
}

func newFloorLane(t *table, store *outboxdb.Store, l lease.Lease) *floorLane {
	return &floorLane{store: store, lease: l, batch: t.cfg.Batch, known: make(map[message.Position]bool)}
}

// run reads the next batch while the last one settles.
func (f *floorLane) run(ctx context.Context) error {
	batches := make(chan []shard.Row, 1)
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		defer close(batches)
		return f.readAll(ctx, batches)
	})
	both.Go(func() error { return f.settleAll(ctx, batches) })
	return both.Wait()
}

func (f *floorLane) readAll(ctx context.Context, batches chan<- []shard.Row) error {
	pause := time.NewTicker(emptyPause)
	defer pause.Stop()
	for {
		f.mu.Lock()
		w := shard.Window{Floor: f.floor, Read: f.read, MaxMessages: f.batch, MaxBytes: maxBytes, MaxBelow: 1 << 20}
		forget := len(f.settled)
		f.mu.Unlock()
		claim, err := f.store.Claim(ctx, f.lease, w)
		if err != nil {
			return err
		}
		inFlight, err := f.note(&claim, forget)
		if err != nil {
			return err
		}
		if len(claim.Rows) > 0 {
			select {
			case batches <- claim.Rows:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if !inFlight {
			return nil
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// note takes what a read showed: rows it must know, rows that are new, and perhaps a higher floor. forget counts the
// settles that the read's snapshot surely saw.
func (f *floorLane) note(claim *shard.Claim, forget int) (inFlight bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range claim.Below {
		if !f.known[p] {
			return false, fmt.Errorf("a row appeared late at position %d, and nobody writes here", p)
		}
	}
	for _, p := range f.settled[:forget] {
		delete(f.known, p)
	}
	f.settled = f.settled[forget:]
	for i := range claim.Rows {
		row := &claim.Rows[i]
		if row.Gated {
			return false, fmt.Errorf(
				"the row at position %d waits behind a gate, and nothing was refused here",
				row.Position,
			)
		}
		f.known[row.Position] = true
		f.read = row.Position
	}
	if f.noteXid != 0 && claim.Xmin > f.noteXid && (!claim.Cut || f.read >= f.noteAt) {
		f.floor, f.noteXid = f.noteAt, 0
	}
	return len(f.known) > len(f.settled), nil
}

func (f *floorLane) settleAll(ctx context.Context, batches <-chan []shard.Row) error {
	for rows := range batches {
		ids, positions := make([]message.ID, len(rows)), make([]string, len(rows))
		for i := range rows {
			ids[i], positions[i] = rows[i].ID, nullPosition(&rows[i].Message)
		}
		f.mu.Lock()
		at := f.read
		f.mu.Unlock()
		settlement, err := f.store.Settle(ctx, f.lease, ids, positions)
		if err != nil {
			return err
		}
		if settlement.Moved != len(rows) {
			return fmt.Errorf("settle moved %d of %d rows", settlement.Moved, len(rows))
		}
		f.mu.Lock()
		for i := range rows {
			f.settled = append(f.settled, rows[i].Position)
		}
		if f.noteXid == 0 {
			f.noteAt, f.noteXid = at, settlement.Xid
		}
		f.mu.Unlock()
	}
	return nil
}
