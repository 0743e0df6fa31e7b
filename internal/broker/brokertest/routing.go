package brokertest

import (
	"strings"
	"testing"

	"github.com/postrider/postrider/internal/broker"
)

// unitsArePlaces checks that a broker of several units keeps each message in the one that was named: what is known of a
// unit is used to judge its messages. A refused destination has a unit too.
func unitsArePlaces(t *testing.T, s *Subject) {
	t.Helper()
	p := s.Publisher(t)
	router, ok := p.(broker.Router)
	if !ok {
		return
	}
	batch := Interleaved(16, 1)
	for i := range batch {
		if i%2 == 1 {
			batch[i].Destination = s.Allowed
		}
	}
	PublishAll(t, p, batch...) // from here on the broker has been looked at
	for i, c := range publish(t, p, batch...) {
		unit := router.Unit(&batch[i])
		if rest, ok := strings.CutPrefix(c.Position, unit); !ok || rest == "" || !strings.ContainsAny(rest[:1], "@#") {
			t.Errorf("message of key %s is at %q, its unit was %q", batch[i].OrderingKey, c.Position, unit)
		}
	}
	refused := batch[0]
	refused.Destination = "elsewhere entirely"
	if router.Unit(&refused) == "" {
		t.Error("a message that is refused has no unit")
	}
}
