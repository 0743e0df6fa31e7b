package broker

import "context"

// Fence names the holding of a shard that a Publish is made under: a broker that can be told keeps out what earlier
// holders still send.
type Fence struct {
	Shard int16
	// Term grows with each holder of the shard.
	Term int64
}

type fenceKey struct{}

// WithFence returns a context for a Publish under the holding.
func WithFence(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

// FenceOf returns the holding that a Publish is made under, and false where the caller named none.
func FenceOf(ctx context.Context) (Fence, bool) {
	f, ok := ctx.Value(fenceKey{}).(Fence)
	return f, ok
}
