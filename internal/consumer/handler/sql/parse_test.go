package sql

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		in   string
		want string
		used []parameter
	}{
		"a parameter becomes a number with its type": {
			"SELECT @data", "SELECT ($1::jsonb)", []parameter{data},
		},
		"each parameter has its own type": {
			"INSERT INTO t VALUES (@event_id, @event_type, @schema_version, @ordering_key, @aggregate_version, " +
				"@occurred_at, @source, @headers, @data, @payload)",
			"INSERT INTO t VALUES (($1::text), ($2::text), ($3::int4), ($4::text), ($5::int8), " +
				"($6::timestamptz), ($7::text), ($8::jsonb), ($9::jsonb), ($10::bytea))",
			[]parameter{
				eventID,
				eventType,
				schemaVersion,
				orderingKey,
				aggregateVersion,
				occurredAt,
				source,
				headers,
				data,
				payload,
			},
		},
		"a parameter used twice is one": {
			"SELECT @data, @event_id, @data", "SELECT ($1::jsonb), ($2::text), ($1::jsonb)", []parameter{data, eventID},
		},
		"operators and casts may follow": {
			"SELECT @data->>'state', @event_id::uuid", "SELECT ($1::jsonb)->>'state', ($2::text)::uuid",
			[]parameter{data, eventID},
		},
		"a semicolon at the end is left out": {
			"SELECT 1; \n-- the end", "SELECT 1 \n-- the end", nil,
		},
		"a comment may stand first": {
			"/* a /* nested */ @data */ -- and @data\nSELECT 1",
			"/* a /* nested */ @data */ -- and @data\nSELECT 1",
			nil,
		},
		"texts stay as they are": {
			`SELECT '@data it''s @data', E'\'@data\\', U&'@data', $$@data$$, $q$ $$ @data $q$, "@data ""x"" @data", a$b$c FROM t`,
			`SELECT '@data it''s @data', E'\'@data\\', U&'@data', $$@data$$, $q$ $$ @data $q$, "@data ""x"" @data", a$b$c FROM t`,
			nil,
		},
		"a backslash ends nothing in a plain text": {
			`SELECT '\', @data`, `SELECT '\', ($1::jsonb)`, []parameter{data},
		},
		"operators with an at sign stay": {
			"SELECT a @> b, c <@ d, e @@ f, g @? h, i <@j FROM t",
			"SELECT a @> b, c <@ d, e @@ f, g @? h, i <@j FROM t",
			nil,
		},
		"an operator may stand before a parameter": {
			"SELECT a @> @data, a <@ @data, -  @schema_version FROM t",
			"SELECT a @> ($1::jsonb), a <@ ($1::jsonb), -  ($2::int4) FROM t",
			[]parameter{data, schemaVersion},
		},
		"a comment ends an operator": {
			"SELECT 1 +-- @data\n 2", "SELECT 1 +-- @data\n 2", nil,
		},
		"names that begin like a keyword are names": {
			"SELECT e FROM e WHERE e.e = @source", "SELECT e FROM e WHERE e.e = ($1::text)", []parameter{source},
		},
		"letters beyond ASCII are letters": {
			"SELECT größe FROM bücher WHERE id = @event_id",
			"SELECT größe FROM bücher WHERE id = ($1::text)",
			[]parameter{eventID},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(tc.in)
			if err != nil {
				t.Fatalf("parse() error = %v", err)
			}
			if diff := cmp.Diff(tc.want, got.sql); diff != "" {
				t.Errorf("statement differs (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.used, got.parameters); diff != "" {
				t.Errorf("parameters differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()

	cases := map[string]struct{ in, want string }{
		"nothing":                                   {" -- nothing\n", "is empty"},
		"two statements":                            {"SELECT 1; DELETE FROM t", "one statement only"},
		"a second semicolon":                        {"SELECT 1;;", "one statement only"},
		"the end of the transaction":                {"COMMIT", "must start with"},
		"a setting":                                 {"SET search_path TO x", "must start with"},
		"numbered parameters":                       {"SELECT $1", "numbered parameters"},
		"a parameter that does not exist":           {"SELECT @amount", "no parameter @amount"},
		"a parameter that is part of an operator":   {"SELECT a<@data", "write a space before @data"},
		"a parameter behind an equals sign":         {"SELECT 1 WHERE a=@event_id", "write a space before @event_id"},
		"a parameter glued to a name":               {"SELECT a@event_id", "write a space before @event_id"},
		"a text without end":                        {"SELECT 'a", "does not end"},
		"an escape string that only seems to end":   {`SELECT E'a\'`, "does not end"},
		"an identifier without end":                 {`SELECT "a`, "does not end"},
		"dollar quotes without end":                 {"SELECT $q$ $$", "does not end"},
		"a comment without end":                     {"SELECT 1 /* /* */", "does not end"},
		"NUL":                                       {"SELECT '\x00'", "UTF-8 text without NUL"},
		"a semicolon hidden behind a comment's end": {"SELECT 1 /* ; */ ; SELECT 2", "one statement only"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := parse(tc.in)
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("parse() = %q, %v, want an error with %q", got.sql, err, tc.want)
			}
		})
	}
}

func TestPositionsPointIntoTheStatementAsWritten(t *testing.T) {
	t.Parallel()

	in := "SELECT @data, @event_id, é, wrong"
	p, err := parse(in)
	if err != nil {
		t.Fatalf("parse() error = %v", err)
	}
	at := func(s, part string) int {
		before, _, _ := strings.Cut(s, part)
		return len([]rune(before)) + 1
	}
	for _, part := range []string{"SELECT", "é", "wrong"} {
		if got, want := p.original(at(p.sql, part)), at(in, part); got != want {
			t.Errorf("position of %q = %d, want %d", part, got, want)
		}
	}
	if got := p.original(0); got != 0 {
		t.Errorf("an unknown position becomes %d, want 0", got)
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"SELECT @data->>'x'", "SELECT E'\\'", "SELECT $a$ @data $a$", "SELECT a <@ @data -- x", "SELECT \"@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		p, err := parse(in)
		if err != nil {
			return
		}
		// What was rewritten holds no named parameter any more, and reading it again finds the numbered ones.
		if _, err := parse(p.sql); err != nil && len(p.parameters) == 0 {
			t.Errorf("parse(%q) = %q, which is refused: %v", in, p.sql, err)
		}
	})
}
