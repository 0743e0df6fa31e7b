package nats

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	natsgo "github.com/nats-io/nats.go"

	"github.com/postrider/postrider/internal/broker"
)

func TestParseServer(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"nats": "nats:4222", "nats:4333": "nats:4333", "nats://nats.shop:4222": "nats.shop:4222", "tls://h": "h:4222",
		"10.0.0.1": "10.0.0.1:4222", "[::1]:4222": "[::1]:4222", "::1": "[::1]:4222", "[::1]": "[::1]:4222",
	} {
		if got, err := parseServer(in); err != nil || got != want {
			t.Errorf("parseServer(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", "nats://user:canary@h:4222", "canary@h", "h:0", "h:65536", "h:port", "a b", "ws://h", "h/x", "h?x", ":4222",
	} {
		_, err := parseServer(in)
		if err == nil {
			t.Errorf("parseServer(%q) is accepted", in)
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("the error repeats a password: %v", err)
		}
	}
}

func TestConfigNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	good := testConfig("h:4222", "ORDERS")
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for field, change := range map[string]func(*Config){
		"nats.servers":    func(c *Config) { c.Servers = nil },
		"nats.servers[0]": func(c *Config) { c.Servers = []string{"a b"} },
		"nats.stream":     func(c *Config) { c.Stream = "A.B" },
		"nats.topology":   func(c *Config) { c.Topology = "" },
		"nats.tls.mode":   func(c *Config) { c.TLS.Mode = "Prefer" },
	} {
		cfg := good
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), field+" ") {
			t.Errorf("Validate() = %v, want it to name %s", err, field)
		}
		if _, err := Dial(t.Context(), cfg); err == nil {
			t.Errorf("Dial accepts a bad %s", field)
		}
	}
}

func TestCovers(t *testing.T) {
	t.Parallel()
	cases := []struct {
		filter, other string
		want          bool
	}{
		{"a.b", "a.b", true},
		{"a.b", "a.c", false},
		{"a.*", "a.b", true},
		{"a.*", "a.b.c", false},
		{"a.>", "a.b.c", true},
		{"a.>", "a", false},
		{"a.>", "a.*", true},
		{"a.*", "a.>", false},
		{"a.b", "a.*", false},
		{"*", "*", true},
		{">", "a.b", true},
		{"a.*.c", "a.b.c", true},
		{"a.*.c", "a.b.d", false},
		{"a.b.c", "a.b", false},
	}
	for _, tc := range cases {
		if got := covers(tc.filter, tc.other); got != tc.want {
			t.Errorf("covers(%s, %s) = %v", tc.filter, tc.other, got)
		}
	}
}

func TestStreamSubjectsDoNotOverlap(t *testing.T) {
	t.Parallel()
	for want, in := range map[string][]string{
		"orders.events":       {"orders.events"},
		"orders.*":            {"orders.events", "orders.*"},
		"orders.>":            {"orders.events", "orders.*", "orders.>", "orders.eu.*"},
		"orders.events a.*":   {"orders.events", "a.b-*", "a.c-*", "a.d"},
		"orders.events a.b.c": {"orders.events", "orders.events", "a.b.c", "a.b.c"},
	} {
		if got := strings.Join(streamSubjects(in[0], in[1:]), " "); got != want {
			t.Errorf("streamSubjects(%q) = %s, want %s", in, got, want)
		}
	}
}

func TestValidSubject(t *testing.T) {
	t.Parallel()
	for _, good := range []string{"orders", "orders.eu", "bestellung.größe", "a-b_c.1"} {
		if !validSubject(good) {
			t.Errorf("%q is refused", good)
		}
	}
	for _, bad := range []string{
		"", ".", "a.", ".a", "a..b", "a b", "a\tb", "a\r\nPUB x", "a\x00", "a\x7f", "a.*", "a.>", "a*b", "$JS.API.STREAM.DELETE.X",
		"$SYS.REQ.SERVER.PING", "_INBOX.x", "a.\xff",
	} {
		if validSubject(bad) {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestParseAck(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		text string
		want string
	}{
		"the usual answer": {`{"stream":"S","seq":17}`, "17 false 0"},
		"with a space":     {`{"stream":"S", "seq": 17}`, "17 false 0"},
		"a duplicate":      {`{"stream":"S","seq":17,"duplicate": true}`, "17 true 0"},
		"with a domain":    {`{"stream":"S","domain":"hub","seq":17}`, "17 false 0"},
		"an error": {
			`{"stream":"S","seq":0,"error":{"code":503,"err_code":10077}}`,
			"0 false 10077",
		},
		"another stream":                {`{"stream":"SS","seq":17}`, "-"},
		"a stream whose name is longer": {`{"stream":"S2","seq":1}`, "-"},
		"no sequence":                   {`{"stream":"S"}`, "-"},
		"sequence zero":                 {`{"stream":"S","seq":0}`, "-"},
		"a sequence beyond 64 bits":     {`{"stream":"S","seq":99999999999999999999}`, "-"},
		"a negative sequence":           {`{"stream":"S","seq":-1}`, "-"},
		"an empty error":                {`{"error":{}}`, "-"},
		"plain text":                    {`ok`, "-"},
		"nothing":                       {``, "-"},
		"bytes after the end":           {`{"stream":"S","seq":17}}`, "-"},
	}
	for name, tc := range cases {
		ack, ok := parseAck([]byte(tc.text), "S")
		got := "-"
		if ok {
			code := 0
			if ack.Error != nil {
				code = ack.Error.ErrorCode
			}
			got = fmt.Sprint(ack.Sequence, ack.Duplicate, code)
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}

func FuzzParseAckNeverConfirmsAnotherStream(f *testing.F) {
	f.Add([]byte(`{"stream":"S","seq":17}`))
	f.Add([]byte(`{"stream":"T","seq":17,"duplicate":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ack, ok := parseAck(data, "S")
		if ok && ack.Error == nil && (ack.Stream != "S" || ack.Sequence == 0) {
			t.Fatalf("%q is taken for %+v", data, ack)
		}
	})
}

func TestParseReply(t *testing.T) {
	t.Parallel()
	want := replyTokens{stream: "S", consumer: "d", deliveries: 2, sequence: 17}
	for _, reply := range []string{
		"$JS.ACK.S.d.2.17.5.1700000000000000000.3",
		"$JS.ACK.hub.acchash.S.d.2.17.5.1700000000000000000.3",
		"$JS.ACK._.acchash.S.d.2.17.5.1700000000000000000.3.token",
		"$JS.ACK._.acchash.S.d.2.17.5.1700000000000000000.3.token.more.of.it",
	} {
		if got, ok := parseReply(reply); !ok || got != want {
			t.Errorf("parseReply(%q) = %+v, %v", reply, got, ok)
		}
	}
	for _, reply := range []string{
		"", "x", "_INBOX.a.b", "$JS.ACK.S.d.2.17.5.1", "$JS.ACK.S.d.two.17.5.1.3", "$JS.ACK.S.d.2.x.5.1.3", "$JS.ACK.S.d.2.0.5.1.3",
		"$JS.FC.S.d.2.17.5.1.3", "$JS.ACK.a.S.d.2.17.5.1.3",
	} {
		if got, ok := parseReply(reply); ok {
			t.Errorf("parseReply(%q) = %+v", reply, got)
		}
	}
}

func FuzzParseReplyNeverPanics(f *testing.F) {
	f.Add("$JS.ACK.S.d.2.17.5.1700000000000000000.3")
	f.Fuzz(func(t *testing.T, reply string) {
		if got, ok := parseReply(reply); ok && got.sequence == 0 {
			t.Fatalf("parseReply(%q) = %+v", reply, got)
		}
	})
}

func TestPublishError(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		err     apiError
		outcome broker.Outcome
		reason  broker.Reason
	}{
		"too large for the stream": {apiError{400, 10054, ""}, broker.Rejected, broker.ReasonTooLarge},
		"headers too large":        {apiError{400, 10097, ""}, broker.Rejected, broker.ReasonTooLarge},
		"full of messages": {
			apiError{503, 10077, "maximum messages exceeded"},
			broker.Unavailable,
			broker.ReasonStreamFull,
		},
		"full of bytes": {
			apiError{503, 10077, "maximum bytes exceeded"},
			broker.Unavailable,
			broker.ReasonStreamFull,
		},
		"a broken store": {
			apiError{503, 10077, "disk on fire"},
			broker.Unavailable,
			broker.ReasonBrokerError,
		},
		"no storage left":            {apiError{500, 10047, ""}, broker.Unavailable, broker.ReasonStreamFull},
		"the account's limit":        {apiError{400, 10002, ""}, broker.Unavailable, broker.ReasonStreamFull},
		"no JetStream":               {apiError{503, 10076, ""}, broker.Unavailable, broker.ReasonStreamMissing},
		"sealed":                     {apiError{400, 10109, ""}, broker.Unavailable, broker.ReasonStreamMismatch},
		"too many at once":           {apiError{429, 10167, ""}, broker.Unavailable, broker.ReasonBrokerError},
		"no leader":                  {apiError{503, 10008, ""}, broker.Unavailable, broker.ReasonBrokerError},
		"a refusal we have no name":  {apiError{400, 19999, "canary"}, broker.Ambiguous, broker.ReasonBrokerError},
		"a failure we have no name ": {apiError{500, 19999, "canary"}, broker.Unavailable, broker.ReasonBrokerError},
	}
	for name, tc := range cases {
		got := publishError(&tc.err)
		if got.Outcome != tc.outcome || got.Reason != tc.reason {
			t.Errorf("%s: %s %s, want %s %s", name, got.Outcome, got.Reason, tc.outcome, tc.reason)
		}
		if strings.Contains(got.Detail, "canary") || got.Detail == "" {
			t.Errorf("%s: detail %q", name, got.Detail)
		}
	}
}

func TestParseDenied(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]denied{
		`Permissions Violation for Publish to "a.b"`:                           {subject: "a.b"},
		`Permissions Violation for Publish to "a"b"`:                           {subject: `a"b`},
		`Permissions Violation for Subscription to "_INBOX.x.>"`:               {subject: "_INBOX.x.>", subscribe: true},
		`Permissions Violation for Subscription to "_INBOX.x" using queue "q"`: {subject: "_INBOX.x", subscribe: true},
	} {
		got, ok := parseDenied(fmt.Errorf("%w: %s", natsgo.ErrPermissionViolation, text))
		if !ok || got != want {
			t.Errorf("parseDenied(%s) = %+v, %v", text, got, ok)
		}
	}
	for _, err := range []error{errors.New(`Publish to "a"`), fmt.Errorf("%w: odd", natsgo.ErrPermissionViolation)} {
		if got, ok := parseDenied(err); ok {
			t.Errorf("parseDenied(%v) = %+v", err, got)
		}
	}
}

func TestChainLinksTheMessagesOfAKey(t *testing.T) {
	t.Parallel()
	batch := keyed("a", "b", "a", "c", "b", "a")
	if got, want := chain(batch, false), []int32{2, 4, 5, -1, -1, -1}; !slices.Equal(got, want) {
		t.Errorf("chain = %v, want %v", got, want)
	}
	c := &call{batch: batch, next: chain(batch, false)}
	if got, want := c.heads(), []int{0, 1, 3}; !slices.Equal(got, want) {
		t.Errorf("heads = %v, want %v", got, want)
	}
	if got, want := chain(batch, true), []int32{-1, -1, -1, -1, -1, -1}; !slices.Equal(got, want) {
		t.Errorf("unordered chain = %v, want %v", got, want)
	}
}
