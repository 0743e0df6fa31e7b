package sql_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postrider/postrider/internal/consumer/handler/sql"
	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/message"
)

func TestRouteIsChosenByType(t *testing.T) {
	t.Parallel()

	h, err := sql.New(sql.Config{MaxDepth: 8, Routes: []sql.Route{
		{EventTypes: []string{"order.*"}, Statement: "SELECT 0"},
		{EventTypes: []string{"order.paid", "order.line.*"}, Statement: "SELECT 1"},
	}})
	if err != nil {
		t.Fatalf("New() error = %v", err)
	}
	cases := map[string]struct {
		eventType string
		want      int
	}{
		"an exact type wins over a prefix":         {"order.paid", 1},
		"a prefix takes the rest":                  {"order.placed", 0},
		"the longest prefix wins":                  {"order.line.added", 1},
		"a prefix takes deeper names too":          {"order.refund.asked", 0},
		"a prefix does not take its own bare name": {"order", -1},
		"nor a name that only begins alike":        {"orders.placed", -1},
		"another type has no route":                {"user.created", -1},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, refusal := h.Route(&message.Envelope{Type: tc.eventType})
			if refusal != nil {
				t.Fatalf("Route() refuses: %v", refusal)
			}
			got := -1
			if s != nil {
				got = s.Route
			}
			if got != tc.want {
				t.Errorf("route = %d, want %d", got, tc.want)
			}
		})
	}
}

func TestAStarTakesWhatNoOtherRouteTakes(t *testing.T) {
	t.Parallel()

	h, err := sql.New(sql.Config{MaxDepth: 8, Routes: []sql.Route{
		{EventTypes: []string{"*"}, Statement: "SELECT 0"},
		{EventTypes: []string{"a.b"}, Statement: "SELECT 1"},
	}})
	if err != nil {
		t.Fatalf("New() error = %v", err)
	}
	for eventType, want := range map[string]int{"x": 0, "a.c": 0, "a.b": 1} {
		if s, _ := h.Route(&message.Envelope{Type: eventType}); s == nil || s.Route != want {
			t.Errorf("route of %q = %v, want %d", eventType, s, want)
		}
	}
}

func TestUnmatchedMessagesCanBeRefused(t *testing.T) {
	t.Parallel()

	h, err := sql.New(sql.Config{
		MaxDepth: 8, RefuseUnmatched: true, Routes: []sql.Route{{EventTypes: []string{"a"}, Statement: "SELECT 1"}},
	})
	if err != nil {
		t.Fatalf("New() error = %v", err)
	}
	if _, refusal := h.Route(&message.Envelope{Type: "b"}); refusal == nil || refusal.Reason != deadletter.Unmatched {
		t.Errorf("refusal = %v, want Unmatched", refusal)
	}
}

func TestArguments(t *testing.T) {
	t.Parallel()

	all := "SELECT @event_id, @event_type, @schema_version, @ordering_key, @aggregate_version, @occurred_at, @source, " +
		"@headers, @data, @payload"
	h, err := sql.New(sql.Config{MaxDepth: 8, Routes: []sql.Route{
		{EventTypes: []string{"all"}, Statement: all},
		{EventTypes: []string{"few"}, Statement: "SELECT @aggregate_version, @occurred_at, @headers, @payload"},
	}})
	if err != nil {
		t.Fatalf("New() error = %v", err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, refusal := h.Route(&message.Envelope{
		EventID:          "7",
		Type:             "all",
		SchemaVersion:    2,
		OrderingKey:      "k",
		AggregateVersion: 9,
		OccurredAt:       at,
		Source:           "shop",
		Headers:          map[string]string{"tenant": "a"},
		Data:             []byte(`{"x":1}`),
	})
	if refusal != nil {
		t.Fatalf("Route() refuses: %v", refusal)
	}
	want := []any{
		"7", "all", int32(2), "k", int64(9), at, "shop", []byte(`{"tenant":"a"}`), []byte(`{"x":1}`), []byte(`{"x":1}`),
	}
	if diff := cmp.Diff(want, s.Args); diff != "" {
		t.Errorf("arguments differ (-want +got):\n%s", diff)
	}

	s, refusal = h.Route(&message.Envelope{Type: "few"})
	if refusal != nil {
		t.Fatalf("Route() refuses a message without data that no one reads as JSON: %v", refusal)
	}
	if diff := cmp.Diff([]any{nil, nil, []byte("{}"), []byte{}}, s.Args); diff != "" {
		t.Errorf("arguments of a bare message differ (-want +got):\n%s", diff)
	}
}

func TestDataThatJsonbRefusesIsRefusedAtOnce(t *testing.T) {
	t.Parallel()

	h, err := sql.New(sql.Config{MaxDepth: 4, Routes: []sql.Route{
		{EventTypes: []string{"json"}, Statement: "SELECT @data"},
		{EventTypes: []string{"raw"}, Statement: "SELECT @payload"},
	}})
	if err != nil {
		t.Fatalf("New() error = %v", err)
	}
	cases := map[string]struct {
		data string
		want deadletter.Reason
	}{
		"an object is fine":                         {`{"a":[1,{"b":null}]}`, ""},
		"brackets in a text do not count":           {`"[[[[[[\"[[["`, ""},
		"a surrogate pair is fine":                  {`"\ud83d\ude00"`, ""},
		"an escaped backslash before u0000 is fine": {`"\\u0000"`, ""},
		"no data at all is no JSON":                 {"", deadletter.InvalidPayload},
		"half an object is no JSON":                 {`{"a":`, deadletter.InvalidPayload},
		"a comment is no JSON":                      {`{} // x`, deadletter.InvalidPayload},
		"a raw NUL is no JSON":                      {"\"\x00\"", deadletter.InvalidPayload},
		"an escaped NUL cannot be stored":           {`{"a":"\u0000"}`, deadletter.UnstorableText},
		"nor as a key":                              {`{"a\u0000":1}`, deadletter.UnstorableText},
		"half a surrogate pair cannot be stored":    {`"\ud83d"`, deadletter.UnstorableText},
		"nor the other half":                        {`"\ude00x"`, deadletter.UnstorableText},
		"nor two first halves":                      {`"\ud83d\ud83d"`, deadletter.UnstorableText},
		"bytes that are not UTF-8 cannot be stored": {"\"\xff\"", deadletter.UnstorableText},
		"deep nesting is refused":                   {`[[[[[]]]]]`, deadletter.PayloadTooDeep},
		"very deep nesting needs no stack":          {strings.Repeat("[", 1<<20), deadletter.PayloadTooDeep},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, refusal := h.Route(&message.Envelope{Type: "json", Data: []byte(tc.data)})
			var got deadletter.Reason
			if refusal != nil {
				got = refusal.Reason
			}
			if got != tc.want {
				t.Errorf("reason = %q, want %q", got, tc.want)
			}
			if _, refusal := h.Route(&message.Envelope{Type: "raw", Data: []byte(tc.data)}); refusal != nil {
				t.Errorf("a route that reads bytes refuses: %v", refusal)
			}
		})
	}
}

func TestNewNamesTheRoute(t *testing.T) {
	t.Parallel()

	ok := sql.Route{EventTypes: []string{"a.*"}, Statement: "SELECT 1"}
	cases := map[string]struct {
		cfg  sql.Config
		want string
	}{
		"no route":          {sql.Config{MaxDepth: 1}, "no route"},
		"no bound of depth": {sql.Config{Routes: []sql.Route{ok}}, "bounded"},
		"a statement that is no one": {
			sql.Config{MaxDepth: 1, Routes: []sql.Route{ok, {Statement: "SELECT 1; SELECT 2"}}},
			"routes[1].statement",
		},
		"a type that two routes claim": {sql.Config{MaxDepth: 1, Routes: []sql.Route{ok, ok}}, "taken by routes[0]"},
		"a star in the middle": {
			sql.Config{MaxDepth: 1, Routes: []sql.Route{{EventTypes: []string{"a*"}, Statement: "SELECT 1"}}},
			"star",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := sql.New(tc.cfg); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("New() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}
