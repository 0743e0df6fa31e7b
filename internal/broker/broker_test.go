package broker

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/message"
)

func TestDestinationsResolve(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		allowed []string
		row     string
		want    string
		ok      bool
	}{
		"an empty destination is the default":           {nil, "", "orders.events", true},
		"the default by its name":                       {nil, "orders.events", "orders.events", true},
		"an empty list allows nothing else":             {nil, "orders.eu", "", false},
		"a star stands for one token":                   {[]string{"orders.*"}, "orders.eu", "orders.eu", true},
		"a star does not reach over a dot":              {[]string{"orders.*"}, "orders.eu.paid", "", false},
		"a star stands for something":                   {[]string{"orders.*"}, "orders.", "", false},
		"a pattern is the whole name":                   {[]string{"orders.*"}, "orders", "", false},
		"a pattern does not match a longer first token": {[]string{"orders.*"}, "myorders.eu", "", false},
		"a greater sign stands for the rest": {
			[]string{"orders.>"},
			"orders.eu.paid",
			"orders.eu.paid",
			true,
		},
		"a greater sign stands for at least one token":   {[]string{"orders.>"}, "orders", "", false},
		"a star inside a token":                          {[]string{"order-*.v1"}, "order-eu.v1", "order-eu.v1", true},
		"two stars inside a token":                       {[]string{"a*b*c"}, "axxbyyc", "axxbyyc", true},
		"ends do not overlap":                            {[]string{"ab*ba"}, "aba", "", false},
		"the second of two patterns":                     {[]string{"x", "y.*"}, "y.1", "y.1", true},
		"an exact name":                                  {[]string{"invoices"}, "invoices", "invoices", true},
		"a greater sign in the middle of a row is plain": {[]string{"a.b"}, "a.>", "", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, err := NewDestinations("orders.events", tc.allowed)
			if err != nil {
				t.Fatal(err)
			}
			got, ok := d.Resolve(&message.Message{Destination: tc.row})
			if got != tc.want || ok != tc.ok {
				t.Errorf("Resolve(%q) = %q, %v; want %q, %v", tc.row, got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestNewDestinationsRefusesMalformedPatterns(t *testing.T) {
	t.Parallel()
	for _, pattern := range []string{"", "a..b", ".a", "a.", "a.>.b", "a>", ">>"} {
		if _, err := NewDestinations("d", []string{pattern}); err == nil {
			t.Errorf("NewDestinations accepts %q", pattern)
		}
	}
}

func TestBlockedAddress(t *testing.T) {
	t.Parallel()
	for addr, want := range map[string]bool{
		"169.254.169.254": true, "::ffff:169.254.169.254": true, "fe80::1%eth0": true, "fd00:ec2::254": true,
		"100.100.100.200": true, "0.0.0.0": true, "::": true, "224.0.0.1": true, "ff02::1": true,
		"127.0.0.1": false, "::1": false, "10.0.0.8": false, "fd00::8": false, "192.0.2.1": false,
	} {
		if got := BlockedAddress(netip.MustParseAddr(addr)); got != want {
			t.Errorf("BlockedAddress(%s) = %v, want %v", addr, got, want)
		}
	}
	if !BlockedAddress(netip.Addr{}) {
		t.Error("the zero address is dialled")
	}
}

func TestErrorCarriesReasonDetailAndCause(t *testing.T) {
	t.Parallel()
	cause := errors.New("refused")
	err := error(&Error{Reason: ReasonUnreachable, Detail: "start the broker", Err: cause})
	if got, want := err.Error(), "Unreachable: start the broker: refused"; got != want {
		t.Errorf("Error() = %q, want %q", got, want)
	}
	if !errors.Is(err, cause) {
		t.Error("the cause is not wrapped")
	}
	for o, want := range map[Outcome]string{
		Unknown: "unknown", Confirmed: "confirmed", Rejected: "rejected", Ambiguous: "ambiguous", Unavailable: "unavailable",
	} {
		if o.String() != want {
			t.Errorf("Outcome(%d) = %q, want %q", o, o, want)
		}
	}
}

func TestEncodingThatPanicsIsAMessagesOwnFailure(t *testing.T) {
	t.Parallel()
	for _, format := range []message.Format{message.Native, message.CloudEventsBinary, message.CloudEventsStructured} {
		_, refusal := Encode(nil, format, message.KafkaBinding)
		if refusal == nil || refusal.Outcome != Rejected || refusal.Reason != ReasonPanic {
			t.Errorf("%s: %+v", format, refusal)
		}
	}
}

func TestWhatAFailureSaysOfTheBroker(t *testing.T) {
	t.Parallel()
	cases := map[string]struct {
		c               Confirmation
		whole, answered bool
	}{
		"no connection":                            {Postpone(ReasonUnreachable, ""), true, false},
		"a refused login":                          {Postpone(ReasonAuthFailed, ""), true, false},
		"a blocked connection":                     {Postpone(ReasonBlocked, ""), true, false},
		"a block that came before the answer":      {Doubt(ReasonBlocked, ""), true, false},
		"no answer to anything":                    {Postpone(ReasonNoAnswer, ""), true, false},
		"no answer to this message":                {Doubt(ReasonNoAnswer, ""), false, false},
		"behind a message of its key":              {Behind(), false, false},
		"a part of the broker that takes no more":  {Postpone(ReasonStreamFull, ""), false, true},
		"a missing right on one destination":       {Refuse(ReasonPermissionDenied, ""), false, true},
		"a message that we refuse without sending": {Reject(ReasonInvalidHeader, ""), false, false},
		"confirmed":                                {Confirmation{Outcome: Confirmed}, false, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := tc.c.WholeBroker(); got != tc.whole {
				t.Errorf("WholeBroker() = %v, want %v", got, tc.whole)
			}
			if got := tc.c.Answered(); got != tc.answered {
				t.Errorf("Answered() = %v, want %v", got, tc.answered)
			}
		})
	}
}

// A reason that is not listed would be counted as one without a name.
func TestReasonsAreListed(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "broker.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var want []Reason
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != "Reason" {
			return true
		}
		for _, value := range spec.Values {
			text, err := strconv.Unquote(value.(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, Reason(text))
		}
		return true
	})
	got := Reasons()
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Reasons() (-constants +listed):\n%s", diff)
	}
}
