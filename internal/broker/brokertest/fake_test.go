package brokertest_test

import (
	"testing"

	"github.com/postrider/postrider/internal/broker"
	"github.com/postrider/postrider/internal/broker/brokertest"
)

func TestFakeKeepsTheContract(t *testing.T) {
	t.Parallel()
	for name, dedupe := range map[string]bool{"deduping": true, "not deduping": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.Run(t, func(*testing.T) *brokertest.Subject {
				f := brokertest.NewFake(brokertest.FakeConfig{Allowed: []string{"fake.*"}, Dedupe: dedupe})
				return &brokertest.Subject{
					Allowed: "fake.eu", MaxPayload: 1 << 20, Dedupes: dedupe,
					Publisher: func(*testing.T) broker.Publisher { return f },
					Receiver: func(_ *testing.T, durable string, prefetch int) brokertest.Receiver {
						r := f.Receiver(durable, prefetch)
						return brokertest.Receiver{Receiver: r, Close: r.Close, Crash: r.Close}
					},
					Stored:  func(*testing.T) []brokertest.Stored { return f.Stored() },
					Silence: f.Pause, Restore: f.Resume,
					Kill: func(*testing.T) { f.Stop() }, Start: func(*testing.T) { f.Start() },
				}
			})
		})
	}
}
