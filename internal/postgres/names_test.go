package postgres

import (
	"strings"
	"testing"
)

func TestNamesSQL(t *testing.T) {
	t.Parallel()
	n := Names{Schema: `we"ird`, Outbox: "orders_outbox"}

	cases := map[string]struct{ in, want string }{
		"the outbox itself":                      {"FROM {outbox}", `FROM "we""ird"."orders_outbox"`},
		"a table beside the outbox":              {"FROM {outbox_gate} g", `FROM "we""ird"."orders_outbox_gate" g`},
		"a table with a fixed name":              {"FROM {message_inbox}", `FROM "we""ird"."message_inbox"`},
		"a bare name":                            {"INDEX {name:outbox_ready}", `INDEX "orders_outbox_ready"`},
		"what is no token stays, such as arrays": {"'{}'::text[], '{a,b}'", "'{}'::text[], '{a,b}'"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := n.SQL(tc.in); got != tc.want {
				t.Errorf("SQL() = %s, want %s", got, tc.want)
			}
		})
	}
}

func TestNamesValidate(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		names Names
		ok    bool
	}{
		"plain names are good":               {Names{Schema: "public", Outbox: "message_outbox"}, true},
		"only inbox tables need no outbox":   {Names{Schema: "billing"}, true},
		"an injected statement is refused":   {Names{Schema: "public", Outbox: "outbox; drop table x"}, false},
		"a quote is refused":                 {Names{Schema: `a"b`}, false},
		"a dollar would end a function":      {Names{Schema: "a$$b"}, false},
		"a qualified name is two names":      {Names{Schema: "public", Outbox: "public.outbox"}, false},
		"a missing schema is refused":        {Names{Outbox: "message_outbox"}, false},
		"a name that would be cut":           {Names{Schema: strings.Repeat("s", 64)}, false},
		"an outbox whose index would be cut": {Names{Schema: "public", Outbox: strings.Repeat("o", 41)}, false},
		"the longest outbox is good":         {Names{Schema: "public", Outbox: strings.Repeat("o", 40)}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := tc.names.Validate(); (err == nil) != tc.ok {
				t.Errorf("Validate() = %v, want ok %t", err, tc.ok)
			}
		})
	}
}
