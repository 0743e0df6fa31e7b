package mount

import (
	"context"
	"time"
)

const (
	// followPeriod is how often the files are compared.
	followPeriod = 2 * time.Second
	// longestWait bounds how many periods are left out before files that did not work are tried again: it doubles from
	// one, so that the tries are 4, 6 and then every 10 seconds apart.
	longestWait = 4
	// proofTimeout bounds one try.
	proofTimeout = 15 * time.Second
)

// Follower tells when connections should be made anew because the files of their Secrets have changed. Connections read
// the files when they are made; those that exist would work on with what was revoked. Files that do not work change
// nothing that does: they are tried again, as the server may take them later.
//
// It is for one goroutine.
type Follower struct {
	paths   []string
	prove   func(ctx context.Context) error
	refused func(ctx context.Context, err error)

	inUse Digest
	known bool
}

// NewFollower takes the present content of the paths (files and directories) as that of the connections, so it comes
// before the first of them. Prove connects once with what the files hold then; refused hears of its error, once for files
// of the same content.
func NewFollower(
	paths []string, prove func(ctx context.Context) error, refused func(ctx context.Context, err error),
) *Follower {
	f := &Follower{paths: paths, prove: prove, refused: refused}
	now, err := sumAll(paths)
	f.inUse, f.known = now, err == nil
	return f
}

// Next waits until the files have changed and have proved to work: connections that were made before should be replaced
// now. Its error is the context's.
func (f *Follower) Next(ctx context.Context) error {
	tick := time.NewTicker(followPeriod)
	defer tick.Stop()
	var refused Digest
	wait, pause := 0, 1
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		now, err := sumAll(f.paths)
		switch {
		case err != nil || (f.known && now == f.inUse):
			continue // a file that is missing shows at the next connect
		case !f.known: // nothing could connect without them, so there is no connection to replace
			f.inUse, f.known = now, true
			continue
		case now == refused && wait > 0:
			wait--
			continue
		}
		err = f.try(ctx)
		switch {
		case err == nil:
			f.inUse = now
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case now == refused:
			pause = min(2*pause, longestWait)
		default:
			f.refused(ctx, err)
			refused, pause = now, 1
		}
		wait = pause
	}
}

func (f *Follower) try(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, proofTimeout)
	defer cancel()
	return f.prove(ctx)
}
