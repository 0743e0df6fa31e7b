package nats

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"

	natsgo "github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postrider/postrider/internal/message"
)

// wireMessage returns the record with JetStream's own headers: the id it dedupes by, and the only stream that may
// keep it. Names are ours and values are escaped, so that natsgo writes them as they are.
func wireMessage(rec *message.Record, transportID, stream string) *natsgo.Msg {
	n := len(rec.Headers) + 2
	header := make(natsgo.Header, n)
	values := make([]string, n) // one array under all the headers' lists
	for i := range rec.Headers {
		values[i] = rec.Headers[i].Value
		header[rec.Headers[i].Name] = values[i : i+1 : i+1]
	}
	values[n-2], values[n-1] = transportID, stream
	header[jetstream.MsgIDHeader] = values[n-2 : n-1 : n-1]
	header[jetstream.ExpectedStreamHeader] = values[n-1 : n : n]
	return &natsgo.Msg{Header: header, Data: rec.Body}
}

// wireSize is what the server counts against max_payload: the headers as they are written, and the body.
func wireSize(msg *natsgo.Msg) int64 {
	n := len("NATS/1.0\r\n") + len("\r\n") + len(msg.Data)
	for name, values := range msg.Header {
		for _, value := range values {
			n += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return int64(n)
}

// pubAck is JetStream's answer to a message.
type pubAck struct {
	Stream    string    `json:"stream"`
	Sequence  uint64    `json:"seq"`
	Duplicate bool      `json:"duplicate"`
	Error     *apiError `json:"error"`
}

// parseAck reads an answer, and says false where it is not from the stream.
func parseAck(data []byte, stream string) (pubAck, bool) {
	if sequence, ok := plainAck(data, stream); ok {
		return pubAck{Stream: stream, Sequence: sequence}, true
	}
	var ack pubAck
	if err := json.Unmarshal(data, &ack); err != nil {
		return pubAck{}, false
	}
	if ack.Error != nil {
		return ack, ack.Error.Code != 0 || ack.Error.ErrorCode != 0
	}
	return ack, ack.Stream == stream && ack.Sequence > 0
}

// plainAck reads the usual answer, `{"stream":"ORDERS","seq":17}`, without the cost of a JSON parser.
func plainAck(data []byte, stream string) (uint64, bool) {
	rest, ok := bytes.CutPrefix(data, []byte(`{"stream":"`))
	if !ok || len(rest) < len(stream) || string(rest[:len(stream)]) != stream {
		return 0, false
	}
	rest, ok = bytes.CutPrefix(rest[len(stream):], []byte(`","seq":`))
	if !ok {
		return 0, false
	}
	rest, ok = bytes.CutSuffix(rest, []byte(`}`))
	const maxDigits = 19 // of a number that cannot overflow
	if !ok || len(rest) == 0 || len(rest) > maxDigits {
		return 0, false
	}
	var n uint64
	for _, c := range rest {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = 10*n + uint64(c-'0')
	}
	return n, n > 0
}

// parseStored reads the event id of a message that the stream shows, whatever its format, from the id that it dedupes by:
// see Publisher.transportID. It says false where the stream shows none.
func parseStored(data []byte) (eventID string, found bool) {
	var answer struct {
		Message *struct {
			Headers []byte `json:"hdrs"` // base64 in JSON
		} `json:"message"`
	}
	if err := json.Unmarshal(data, &answer); err != nil || answer.Message == nil {
		return "", false
	}
	header, err := natsgo.DecodeHeadersMsg(answer.Message.Headers)
	if err != nil {
		return "", false
	}
	values := header[jetstream.MsgIDHeader]
	if len(values) == 0 {
		return "", false
	}
	eventID = values[0]
	if end := strings.IndexAny(eventID, republishMark+resentMark); end >= 0 {
		eventID = eventID[:end]
	}
	return eventID, true
}

// replyTokens are the parts of a delivery's reply subject that we need.
type replyTokens struct {
	stream, consumer string
	deliveries       int
	sequence         uint64
}

// parseReply reads where a delivery comes from:
// $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<consumer sequence>.<time>.<pending>, or the newer form with
// domain and account before the stream and a token behind.
func parseReply(reply string) (replyTokens, bool) {
	const oldForm, newForm = 9, 11
	var tokens [newForm + 1]string
	n := 0
	start := 0
	for i := 0; i <= len(reply); i++ {
		if i < len(reply) && reply[i] != '.' {
			continue
		}
		if n == len(tokens) {
			n++
			break
		}
		tokens[n] = reply[start:i]
		n++
		start = i + 1
	}
	at := 2
	switch {
	case tokens[0] != "$JS" || tokens[1] != "ACK":
		return replyTokens{}, false
	case n == oldForm:
	case n >= newForm:
		at = 4
	default:
		return replyTokens{}, false
	}
	deliveries, err := strconv.Atoi(tokens[at+2])
	if err != nil {
		return replyTokens{}, false
	}
	sequence, err := strconv.ParseUint(tokens[at+3], 10, 64)
	if err != nil || sequence == 0 {
		return replyTokens{}, false
	}
	return replyTokens{stream: tokens[at], consumer: tokens[at+1], deliveries: deliveries, sequence: sequence}, true
}
