package broker

import "github.com/postrider/postrider/internal/message"

// Reject returns the confirmation of a message that will never be accepted as it is.
func Reject(reason Reason, detail string) Confirmation {
	return Confirmation{Outcome: Rejected, Reason: reason, Detail: Bounded(detail)}
}

// Refuse returns the confirmation of a message of which the error cannot tell whether it is to blame.
func Refuse(reason Reason, detail string) Confirmation {
	return Confirmation{Outcome: Ambiguous, Reason: reason, Detail: Bounded(detail)}
}

// Postpone returns the confirmation of a message that was not taken for a reason of the environment.
func Postpone(reason Reason, detail string) Confirmation {
	return Confirmation{Outcome: Unavailable, Reason: reason, Detail: Bounded(detail)}
}

// Doubt returns the confirmation of a message that was perhaps sent.
func Doubt(reason Reason, detail string) Confirmation {
	return Confirmation{Outcome: Unknown, Reason: reason, Detail: Bounded(detail)}
}

// Behind is the confirmation of a message that was not sent because an earlier one of its key was not confirmed.
func Behind() Confirmation {
	return Postpone(ReasonNotSent, "an earlier message of the key was not confirmed")
}

// Encode is message.EncodeAs, except that a panic is a refusal of this message. The confirmation is nil where there is a
// record.
func Encode(
	m *message.Message, format message.Format, binding message.Binding,
) (rec message.Record, refusal *Confirmation) {
	defer func() {
		if recover() != nil {
			c := Reject(ReasonPanic, "encoding the message panicked")
			rec, refusal = message.Record{}, &c
		}
	}()
	rec, err := message.EncodeAs(m, format, binding)
	if err != nil {
		c := Refusal(err)
		return message.Record{}, &c
	}
	return rec, nil
}
