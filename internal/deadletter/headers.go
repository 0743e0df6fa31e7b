package deadletter

import (
	"encoding/binary"
	"errors"

	"github.com/postrider/postrider/internal/message"
)

// headersVersion is the first byte of encoded headers.
const headersVersion = 1

// ErrInvalidHeaders says that bytes are not headers as EncodeHeaders writes them.
var ErrInvalidHeaders = errors.New("raw headers are damaged")

// EncodeHeaders writes a record's headers as raw_headers keeps them: one byte 1 for the format, then for each header, in
// the record's order, the name and the value, each as its length in bytes (unsigned LEB128, as encoding/binary's
// Uvarint) followed by its bytes. Nothing is escaped, sorted, folded or dropped, so any bytes come back as they were.
func EncodeHeaders(headers []message.Header) []byte {
	size := 1
	for i := range headers {
		size += len(headers[i].Name) + len(headers[i].Value) + 2*binary.MaxVarintLen32
	}
	b := append(make([]byte, 0, size), headersVersion)
	for i := range headers {
		b = appendText(b, headers[i].Name)
		b = appendText(b, headers[i].Value)
	}
	return b
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// DecodeHeaders reads what EncodeHeaders wrote.
func DecodeHeaders(b []byte) ([]message.Header, error) {
	if len(b) == 0 || b[0] != headersVersion {
		return nil, ErrInvalidHeaders
	}
	b = b[1:]
	var headers []message.Header
	for len(b) > 0 {
		var h message.Header
		var err error
		if h.Name, b, err = cutText(b); err != nil {
			return nil, err
		}
		if h.Value, b, err = cutText(b); err != nil {
			return nil, err
		}
		headers = append(headers, h)
	}
	return headers, nil
}

func cutText(b []byte) (text string, rest []byte, err error) {
	n, used := binary.Uvarint(b)
	if used <= 0 || n > uint64(len(b)-used) { //nolint:gosec // used is at most len(b)
		return "", nil, ErrInvalidHeaders
	}
	end := used + int(n) //nolint:gosec // n is at most len(b)
	return string(b[used:end]), b[end:], nil
}
