package nats

import (
	"context"
	"crypto/x509"
	"errors"
	"strconv"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/broker"
)

// Codes of JetStream's errors that natsgo does not name.
const (
	codeAccountResources  = 10002
	codeConsumerNotFound  = 10014
	codeInsufficient      = 10023
	codeMemoryResources   = 10028
	codeNoMessage         = 10037
	codeNotEnabledAccount = 10039
	codeStorageResources  = 10047
	codeMessageTooLarge   = 10054
	codeStreamNotFound    = 10059
	codeStreamMismatch    = 10060
	codeNotEnabled        = 10076
	codeStoreFailed       = 10077
	codeHeaderTooLarge    = 10097
	codeStreamSealed      = 10109
	codeStreamOffline     = 10118
	codeTooManyRequests   = 10167

	serverErrors = 500 // HTTP-like codes from here on are the server's fault
	throttled    = 429
)

// apiError is how JetStream writes an error into its answers.
type apiError struct {
	Code        int    `json:"code"`
	ErrorCode   int    `json:"err_code"`
	Description string `json:"description"`
}

// publishError says what an error in a PubAck means for its message.
func publishError(e *apiError) broker.Confirmation {
	switch e.ErrorCode {
	case codeMessageTooLarge:
		return rejected(broker.ReasonTooLarge, "the message exceeds the stream's max_msg_size")
	case codeHeaderTooLarge:
		return rejected(broker.ReasonTooLarge, "the message's headers exceed JetStream's limit of 64 KiB")
	case codeStoreFailed:
		if !strings.Contains(e.Description, "maximum") {
			return unavailable(broker.ReasonBrokerError, "the stream could not store the message")
		}
		return unavailable(
			broker.ReasonStreamFull,
			"the stream is at its limit and discards new messages: raise the limit",
		)
	case codeStorageResources, codeInsufficient, codeMemoryResources, codeAccountResources:
		return unavailable(broker.ReasonStreamFull, "the server has no more storage for streams: raise its limit")
	case codeNotEnabled, codeNotEnabledAccount:
		return unavailable(broker.ReasonStreamMissing, "JetStream is not enabled for the account")
	case codeStreamSealed:
		return unavailable(broker.ReasonStreamMismatch, "the stream is sealed and takes no messages")
	case codeStreamNotFound:
		return unavailable(broker.ReasonStreamMissing, "the stream is gone")
	case codeTooManyRequests, codeStreamOffline:
		return unavailable(broker.ReasonBrokerError, "the stream takes no messages at the moment")
	}
	if e.Code >= serverErrors || e.Code == throttled {
		return unavailable(broker.ReasonBrokerError, "JetStream could not store the message")
	}
	// A refusal that we have no word for: it came for this message alone.
	return broker.Confirmation{
		Outcome: broker.Ambiguous, Reason: broker.ReasonBrokerError, Detail: "JetStream refuses the message",
	}
}

func rejected(reason broker.Reason, detail string) broker.Confirmation {
	return broker.Confirmation{Outcome: broker.Rejected, Reason: reason, Detail: broker.Bounded(detail)}
}

func unavailable(reason broker.Reason, detail string) broker.Confirmation {
	return broker.Confirmation{Outcome: broker.Unavailable, Reason: reason, Detail: broker.Bounded(detail)}
}

func unknown(detail string) broker.Confirmation {
	return broker.Confirmation{Outcome: broker.Unknown, Reason: broker.ReasonNoAnswer, Detail: detail}
}

// unavailableFrom turns an environment's error into a message's confirmation.
func unavailableFrom(err error) broker.Confirmation {
	if e, ok := errors.AsType[*broker.Error](err); ok {
		return unavailable(e.Reason, e.Detail)
	}
	return unavailable(broker.ReasonUnreachable, "not connected to NATS")
}

// stateError puts an error of JetStream's API into our words. The server's are left out: it may be anybody's.
func stateError(doing string, err error) *broker.Error {
	var known *broker.Error
	var api *jetstream.APIError
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount):
		return &broker.Error{
			Reason: broker.ReasonStreamMissing,
			Detail: doing + ": JetStream is not enabled for the account",
		}
	case errors.Is(err, natsgo.ErrNoResponders), errors.Is(err, jetstream.ErrNoStreamResponse):
		return &broker.Error{Reason: broker.ReasonStreamMissing, Detail: doing + ": nobody answers for JetStream"}
	case errors.Is(err, natsgo.ErrConnectionClosed), errors.Is(err, natsgo.ErrDisconnected):
		return &broker.Error{Reason: broker.ReasonUnreachable, Detail: doing + ": the connection ended", Err: err}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, natsgo.ErrTimeout):
		return &broker.Error{Reason: broker.ReasonNoAnswer, Detail: doing + ": no answer in time", Err: err}
	case errors.Is(err, context.Canceled):
		return &broker.Error{Reason: broker.ReasonNotSent, Detail: doing + ": ended by us", Err: err}
	case errors.As(err, &api):
		return &broker.Error{
			Reason: broker.ReasonBrokerError,
			Detail: doing + ": JetStream refuses (error " + strconv.Itoa(int(api.ErrorCode)) + ")",
		}
	default:
		return &broker.Error{Reason: broker.ReasonBrokerError, Detail: doing + ": the answer is not understood"}
	}
}

// tlsDetail says which part of TLS failed. Names in the server's certificate are not repeated.
func tlsDetail(server string, err error) string {
	var host x509.HostnameError
	var invalid x509.CertificateInvalidError
	var authority x509.UnknownAuthorityError
	switch {
	case errors.As(err, &host):
		return server + " shows a certificate for another name: check host and certificate"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return server + " shows an expired certificate: renew it"
	case errors.As(err, &authority):
		return server + " shows a certificate of an unknown authority: check the CA"
	default:
		return "TLS with " + server + " failed: check CA, client certificate and tls.mode"
	}
}
