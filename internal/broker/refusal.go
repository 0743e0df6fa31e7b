package broker

import "github.com/postrider/postrider/internal/message"

// Refusal returns the confirmation of a message that message.Encode refuses.
func Refusal(err error) Confirmation {
	c := Confirmation{Outcome: Rejected, Reason: ReasonInvalidHeader, Detail: Bounded(err.Error())}
	if reason, ok := message.ReasonOf(err); ok && reason == message.TooLarge {
		c.Reason = ReasonTooLarge
	}
	return c
}

// maxDetailBytes bounds a Detail.
const maxDetailBytes = 256

// Bounded cuts a detail to its bound.
func Bounded(detail string) string {
	if len(detail) > maxDetailBytes {
		return detail[:maxDetailBytes]
	}
	return detail
}
