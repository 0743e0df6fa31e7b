package deadletter_test

import (
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
)

func TestHeadersComeBackAsTheyWere(t *testing.T) {
	t.Parallel()

	cases := map[string][]message.Header{
		"no header at all":          nil,
		"an empty name and value":   {{}},
		"the same name twice":       {{Name: "a", Value: "1"}, {Name: "a", Value: "2"}},
		"bytes that are not text":   {{Name: "\xff\x00", Value: "\x00\xfe\r\n"}},
		"a value longer than a LEB": {{Name: "long", Value: strings.Repeat("x", 70_000)}},
	}
	for name, headers := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := deadletter.DecodeHeaders(deadletter.EncodeHeaders(headers))
			if err != nil {
				t.Fatalf("DecodeHeaders() error = %v", err)
			}
			if diff := cmp.Diff(headers, got); diff != "" {
				t.Errorf("headers differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDamagedHeadersAreRefused(t *testing.T) {
	t.Parallel()

	cases := map[string][]byte{
		"nothing":                        nil,
		"another format":                 {2},
		"a name without its value":       {1, 1, 'a'},
		"a length beyond the end":        {1, 200, 1, 'a'},
		"a length that never ends":       {1, 0xff, 0xff},
		"a length larger than an int is": {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01},
	}
	for name, raw := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got, err := deadletter.DecodeHeaders(raw); !errors.Is(err, deadletter.ErrInvalidHeaders) {
				t.Errorf("DecodeHeaders() = %v, %v, want ErrInvalidHeaders", got, err)
			}
		})
	}
}

func FuzzDecodeHeaders(f *testing.F) {
	f.Add(deadletter.EncodeHeaders([]message.Header{{Name: "event-id", Value: "7"}}))
	f.Add([]byte{1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, raw []byte) {
		headers, err := deadletter.DecodeHeaders(raw)
		if err != nil {
			return
		}
		again, err := deadletter.DecodeHeaders(deadletter.EncodeHeaders(headers))
		if err != nil || !cmp.Equal(headers, again) {
			t.Errorf("headers %v come back as %v, %v", headers, again, err)
		}
	})
}

func TestTextIsAlwaysStorable(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		in   string
		max  int
		want string
	}{
		"plain text stays":                      {"order.paid", 64, "order.paid"},
		"NUL is replaced":                       {"a\x00b", 64, "a\uFFFDb"},
		"bytes that are not UTF-8 are replaced": {"a\xffb", 64, "a\uFFFDb"},
		"long text is cut between characters":   {"ééé", 5, "éé"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := deadletter.Text(tc.in, tc.max)
			if got != tc.want || !utf8.ValidString(got) {
				t.Errorf("Text(%q, %d) = %q, want %q", tc.in, tc.max, got, tc.want)
			}
		})
	}
}

func TestClassifyStatement(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		state string
		want  deadletter.Class
	}{
		"no answer is the environment":             {"", deadletter.Environment},
		"a lost connection is the environment":     {"08006", deadletter.Environment},
		"a full disk is the environment":           {"53100", deadletter.Environment},
		"a stopping server is the environment":     {"57P01", deadletter.Environment},
		"an internal error is the environment":     {"XX000", deadletter.Environment},
		"a read-only server is the environment":    {"25006", deadletter.Environment},
		"a serialisation failure runs again":       {"40001", deadletter.Retry},
		"a deadlock runs again":                    {"40P01", deadletter.Retry},
		"a statement timeout cannot tell":          {"57014", deadletter.Ambiguous},
		"a lock timeout cannot tell":               {"55P03", deadletter.Ambiguous},
		"a missing table cannot tell":              {"42P01", deadletter.Ambiguous},
		"a missing right cannot tell":              {"42501", deadletter.Ambiguous},
		"a constraint refuses the message":         {"23505", deadletter.Message},
		"an invalid value refuses the message":     {"22P02", deadletter.Message},
		"an exception of a function refuses it":    {"P0001", deadletter.Message},
		"a state of the user's own refuses it":     {"UE123", deadletter.Message},
		"two rows of a subquery refuse it":         {"21000", deadletter.Message},
		"a too deep recursion refuses the message": {"54001", deadletter.Message},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := deadletter.ClassifyStatement(tc.state); got != tc.want {
				t.Errorf("ClassifyStatement(%q) = %v, want %v", tc.state, got, tc.want)
			}
		})
	}
}

func TestOnlyMessagesWithAPlaceHoldTheirKey(t *testing.T) {
	t.Parallel()

	free := map[deadletter.Reason]bool{
		deadletter.DuplicateIDDifferentPayload: true, deadletter.VersionMissing: true,
		deadletter.VersionConflict: true, deadletter.LateVersion: true,
	}
	for _, r := range deadletter.Reasons() {
		if r.HoldsKey() == free[r] {
			t.Errorf("%s holds its key: %v, want %v", r, r.HoldsKey(), !free[r])
		}
	}
}

func TestAFailureCanAlwaysBeStored(t *testing.T) {
	t.Parallel()

	f := deadletter.Failure{
		Envelope: message.Envelope{
			EventID: "\x00", Type: "\xff", Source: strings.Repeat("s", 9000), OrderingKey: strings.Repeat("k", 9000),
		},
		Destination: "\x00", Position: "ORDERS@1", Detail: strings.Repeat("d", 9000),
	}.Storable()
	for _, s := range []string{f.Envelope.EventID, f.Envelope.Type, f.Envelope.Source, f.Envelope.OrderingKey, f.Destination} {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) || len(s) > 1024 {
			t.Errorf("%q cannot be stored", s)
		}
	}
	if len(f.Detail) > 256 {
		t.Errorf("detail has %d bytes, want at most 256", len(f.Detail))
	}
}
