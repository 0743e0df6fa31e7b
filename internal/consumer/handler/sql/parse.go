package sql

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// parameter is a named parameter of a statement.
type parameter uint8

// The parameters.
const (
	eventID parameter = iota
	eventType
	schemaVersion
	orderingKey
	aggregateVersion
	occurredAt
	source
	headers
	data
	payload
)

// kinds gives each parameter its PostgreSQL type. The cast is written into the statement, so that the type never
// depends on what stands around the parameter.
var kinds = map[string]struct {
	parameter parameter
	cast      string
}{
	"event_id":          {eventID, "text"},
	"event_type":        {eventType, "text"},
	"schema_version":    {schemaVersion, "int4"},
	"ordering_key":      {orderingKey, "text"},
	"aggregate_version": {aggregateVersion, "int8"},
	"occurred_at":       {occurredAt, "timestamptz"},
	"source":            {source, "text"},
	"headers":           {headers, "jsonb"},
	"data":              {data, "jsonb"},
	"payload":           {payload, "bytea"},
}

// SyntaxError says where a statement is not as it must be. Offset counts bytes of the statement from 0.
type SyntaxError struct {
	Offset int
	Text   string
}

// Error implements error.
func (e *SyntaxError) Error() string { return fmt.Sprintf("%s (at byte %d)", e.Text, e.Offset+1) }

// parsed is a statement with its named parameters turned into numbered ones.
type parsed struct {
	sql        string
	parameters []parameter // in the order of their numbers
	shifts     []shift
}

// shift says that after a parameter the rewritten statement is ahead of the original.
type shift struct {
	rewritten int // characters of the rewritten statement up to the end of the parameter
	original  int // the same of the original
}

// scanner reads a statement as PostgreSQL's lexer does, as far as it matters where a parameter may stand:
// never in a literal, an identifier, a comment or an operator.
type scanner struct {
	in    string
	pos   int
	out   strings.Builder
	used  []parameter
	moves []shift
	words int // words and other tokens seen so far
	ended bool
}

// parse rewrites a statement. It refuses more than one statement, numbered and unknown parameters, and
// statements that would end or change the transaction they run in.
func parse(statement string) (parsed, error) {
	if !utf8.ValidString(statement) || strings.IndexByte(statement, 0) >= 0 {
		return parsed{}, &SyntaxError{Text: "the statement is not UTF-8 text without NUL"}
	}
	s := &scanner{in: statement}
	for s.pos < len(s.in) {
		if err := s.next(); err != nil {
			return parsed{}, err
		}
	}
	if s.words == 0 {
		return parsed{}, &SyntaxError{Text: "the statement is empty"}
	}
	return parsed{sql: s.out.String(), parameters: s.used, shifts: s.moves}, nil
}

// next copies or rewrites one token.
func (s *scanner) next() error {
	c := s.in[s.pos]
	switch {
	case isSpace(c):
		s.copy(1)
		return nil
	case strings.HasPrefix(s.in[s.pos:], "--"):
		s.copy(lineComment(s.in[s.pos:]))
		return nil
	case strings.HasPrefix(s.in[s.pos:], "/*"):
		return s.blockComment()
	}
	if s.ended {
		return s.fail("one statement only: nothing may follow the semicolon")
	}
	switch {
	case c == ';':
		s.ended = true
		s.pos++ // left out, so that a semicolon at the end does no harm
		return nil
	case c == '\'':
		return s.literal(false)
	case c == '"':
		return s.quoted()
	case c == '$':
		return s.dollar()
	case isWordStart(c):
		return s.word()
	case c >= '0' && c <= '9':
		s.number()
		return nil
	case isOperator(c):
		return s.operator()
	default:
		s.token(1)
		return nil
	}
}

func (s *scanner) fail(text string) error { return &SyntaxError{Offset: s.pos, Text: text} }

// copy writes the next n bytes as they are.
func (s *scanner) copy(n int) {
	s.out.WriteString(s.in[s.pos : s.pos+n])
	s.pos += n
}

// token copies n bytes that are part of the statement proper.
func (s *scanner) token(n int) {
	s.words++
	s.copy(n)
}

func lineComment(in string) int {
	if end := strings.IndexAny(in, "\r\n"); end >= 0 {
		return end
	}
	return len(in)
}

// blockComment copies a comment; they nest.
func (s *scanner) blockComment() error {
	depth := 0
	for i := s.pos; i < len(s.in); {
		switch {
		case strings.HasPrefix(s.in[i:], "/*"):
			depth++
			i += 2
		case strings.HasPrefix(s.in[i:], "*/"):
			depth--
			i += 2
		default:
			i++
		}
		if depth == 0 {
			s.copy(i - s.pos)
			return nil
		}
	}
	return s.fail("a comment does not end")
}

// literal copies a string in single quotes. In an escape string a backslash takes the next byte with it.
func (s *scanner) literal(escapes bool) error {
	for i := s.pos + 1; i < len(s.in); i++ {
		switch {
		case escapes && s.in[i] == '\\':
			i++
		case s.in[i] == '\'' && i+1 < len(s.in) && s.in[i+1] == '\'':
			i++
		case s.in[i] == '\'':
			s.token(i + 1 - s.pos)
			return nil
		}
	}
	return s.fail("a text in quotes does not end")
}

// quoted copies an identifier in double quotes.
func (s *scanner) quoted() error {
	for i := s.pos + 1; i < len(s.in); i++ {
		if s.in[i] != '"' {
			continue
		}
		if i+1 < len(s.in) && s.in[i+1] == '"' {
			i++
			continue
		}
		s.token(i + 1 - s.pos)
		return nil
	}
	return s.fail("an identifier in quotes does not end")
}

// dollar copies a text in dollar quotes and refuses numbered parameters.
func (s *scanner) dollar() error {
	rest := s.in[s.pos+1:]
	if rest != "" && rest[0] >= '0' && rest[0] <= '9' {
		return s.fail("numbered parameters are not known here: use @data, @event_id and the like")
	}
	n := 0
	for n < len(rest) && (isWordStart(rest[n]) || (n > 0 && rest[n] >= '0' && rest[n] <= '9')) {
		n++
	}
	if n == len(rest) || rest[n] != '$' {
		s.token(1)
		return nil
	}
	tag := s.in[s.pos : s.pos+n+2]
	end := strings.Index(s.in[s.pos+len(tag):], tag)
	if end < 0 {
		return s.fail("a text in dollar quotes does not end")
	}
	s.token(2*len(tag) + end)
	return nil
}

// word copies a keyword or identifier, and an escape string that one introduces.
func (s *scanner) word() error {
	n := 1
	for s.pos+n < len(s.in) && isWordPart(s.in[s.pos+n]) {
		n++
	}
	word := s.in[s.pos : s.pos+n]
	if s.words == 0 && !slices.Contains(verbs[:], strings.ToUpper(word)) {
		return s.fail("the statement must start with " + strings.Join(verbs[:], ", "))
	}
	s.token(n)
	if (word == "E" || word == "e") && s.pos < len(s.in) && s.in[s.pos] == '\'' {
		return s.literal(true)
	}
	return s.glued()
}

// verbs are what a handler's statement may start with: nothing that ends, changes or outlives the transaction.
var verbs = [...]string{"INSERT", "UPDATE", "DELETE", "MERGE", "SELECT", "WITH", "CALL"}

// number copies digits and the letters that may follow them.
func (s *scanner) number() {
	n := 1
	for s.pos+n < len(s.in) && (isWordPart(s.in[s.pos+n]) || s.in[s.pos+n] == '.') {
		n++
	}
	s.token(n)
}

// glued refuses a parameter that follows a word without anything between: PostgreSQL reads another operator there.
func (s *scanner) glued() error {
	if s.pos < len(s.in) && s.in[s.pos] == '@' {
		if name := s.parameterName(s.pos + 1); name != "" {
			return s.fail("write a space before @" + name)
		}
	}
	return nil
}

// operator copies a run of operator characters, or rewrites the parameter that a single @ introduces.
func (s *scanner) operator() error {
	n := s.operatorLength()
	run := s.in[s.pos : s.pos+n]
	name := ""
	if run[n-1] == '@' {
		name = s.parameterName(s.pos + n)
	}
	if name == "" {
		s.token(n)
		return nil
	}
	kind, known := kinds[name]
	switch {
	case n > 1 && known:
		return s.fail("write a space before @" + name)
	case n > 1:
		s.token(n) // an operator such as <@ before a column
		return nil
	case !known:
		return s.fail("there is no parameter @" + name + "; for the absolute value use abs()")
	}
	s.parameter(kind.parameter, kind.cast, 1+len(name))
	return nil
}

// operatorLength returns the length of the run of operator characters here; a comment ends it.
func (s *scanner) operatorLength() int {
	n := 1
	for s.pos+n < len(s.in) && isOperator(s.in[s.pos+n]) {
		if rest := s.in[s.pos+n:]; strings.HasPrefix(rest, "--") || strings.HasPrefix(rest, "/*") {
			break
		}
		n++
	}
	return n
}

func (s *scanner) parameterName(at int) string {
	end := at
	for end < len(s.in) && isWordPart(s.in[end]) && s.in[end] != '$' {
		end++
	}
	if end == at || !isWordStart(s.in[at]) {
		return ""
	}
	return s.in[at:end]
}

// parameter writes ($n::type) for the next n bytes. A parameter used twice keeps its number.
func (s *scanner) parameter(p parameter, cast string, n int) {
	index := slices.Index(s.used, p)
	if index < 0 {
		index = len(s.used)
		s.used = append(s.used, p)
	}
	s.words++
	s.out.WriteString("($" + strconv.Itoa(index+1) + "::" + cast + ")")
	s.pos += n
	s.moves = append(s.moves, shift{
		rewritten: utf8.RuneCountInString(s.out.String()),
		original:  utf8.RuneCountInString(s.in[:s.pos]),
	})
}

// original returns the character of the statement as it was written, from 1, for a character of the rewritten one.
func (p parsed) original(position int) int {
	if position <= 0 {
		return 0
	}
	moved := 0
	for _, m := range p.shifts {
		if position > m.rewritten {
			moved = m.rewritten - m.original
		}
	}
	return max(1, position-moved)
}

func isSpace(c byte) bool {
	return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f' || c == '\v'
}

// isWordStart says what an identifier may start with; all bytes above ASCII count as letters.
func isWordStart(c byte) bool {
	return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= utf8.RuneSelf
}

func isWordPart(c byte) bool { return isWordStart(c) || (c >= '0' && c <= '9') || c == '$' }

func isOperator(c byte) bool { return strings.IndexByte("+-*/<>=~!@#%^&|`?", c) >= 0 }
