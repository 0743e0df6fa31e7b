package nats

import "context"

// Finished returns the sequence up to which the durable has seen everything acknowledged. It is what StartSequence
// wants, plus one, should the broker lose the durable.
func (r *Receiver) Finished(ctx context.Context) (uint64, error) {
	s, err := r.conn.live(ctx)
	if err != nil {
		return 0, err
	}
	info, err := r.consumerInfo(ctx, s)
	if err != nil {
		return 0, stateError("look up durable "+r.cfg.Durable, err)
	}
	return info.AckFloor.Stream, nil
}
