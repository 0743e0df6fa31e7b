package broker

import (
	"context"
	"time"
)

// LastCall returns a context that ends when half of the time is over that ctx leaves a Publish. What is not on its way by
// then is better sent by the next one: it is NoTime. So a broker that is slow, and not silent, has answered what is on its
// way before the deadline, nobody is in doubt about it, and no message is suspected of being the cause. It costs nothing:
// a Publish is over as soon as everything that it has sent is answered.
func LastCall(ctx context.Context) (context.Context, context.CancelFunc) {
	until, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Until(until)/2)
}

// NoTime is the confirmation of a message that was not sent because the time of its Publish was too short for it.
func NoTime() Confirmation {
	return Postpone(ReasonNotSent, "the deadline came before the message's turn")
}
