package nats

import (
	"context"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// incarnation names a stream as it was made. One that was deleted and made again has the same name and counts from one
// again: a position in the old one says nothing about the new one, however long that has become.
func incarnation(stream *jetstream.StreamInfo) string {
	return stream.Config.Name + "@" + stream.Created.UTC().Format(time.RFC3339Nano)
}

// SameStream says whether two names of incarnations, as Finished gives them, are of one stream.
func SameStream(a, b string) bool {
	nameA, _, _ := strings.Cut(a, "@")
	nameB, _, _ := strings.Cut(b, "@")
	return nameA != "" && nameA == nameB
}

// Finished returns the sequence up to which the durable has seen everything acknowledged, and in which incarnation of
// the stream. It is what StartSequence wants, plus one, should the broker lose the durable.
func (r *Receiver) Finished(ctx context.Context) (stream string, sequence uint64, err error) {
	s, err := r.conn.live(ctx)
	if err != nil {
		return "", 0, err
	}
	// The stream first: if it is made again in between, the new one's position is noted for the old one, where it serves
	// nothing. The other way round it would skip messages.
	of, err := s.streamInfo(ctx, r.conn.cfg.Stream)
	if err != nil {
		return "", 0, stateError("look up stream "+r.conn.cfg.Stream, err)
	}
	info, err := r.consumerInfo(ctx, s)
	if err != nil {
		return "", 0, stateError("look up durable "+r.cfg.Durable, err)
	}
	return incarnation(of), info.AckFloor.Stream, nil
}
