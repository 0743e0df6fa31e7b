package mapped

import "strconv"

// HeadersBound is from which size on headers are not loaded, in bytes as PostgreSQL has them. It is above all that a
// record carries, in any way of writing it down: what is larger is refused as TooLarge.
const HeadersBound = 128 << 10

// TextBound is how many characters of a text are loaded, since its column may hold any number: more than a record carries,
// so that a message with so long a text is refused.
const TextBound = 1 << 10

var headersBound, textBound = strconv.Itoa(HeadersBound), strconv.Itoa(TextBound)

// Short is a text, or its beginning. The length of a text is known without loading it.
func Short(text string) string {
	return "CASE WHEN octet_length(" + text + ") <= " + textBound + " THEN " + text + " ELSE left(" + text + ", " +
		textBound + ") END"
}

// HeadersSize is what a column of headers counts for in a batch, as an expression, without loading what is stored out of
// line: the size of what is not compressed is known, and what is too large even compressed needs no look. #> '{}' is the
// value itself.
func HeadersSize(column string) string {
	return "CASE WHEN " + column + " IS NULL THEN 0 WHEN pg_column_size(" + column + ") > " + headersBound +
		" OR pg_column_compression(" + column + ") IS NULL THEN pg_column_size(" + column +
		") ELSE pg_column_size(" + column + " #> '{}') END"
}

// unreadable says whether a json column holds what jsonb cannot: an escape that stands for no character, as \u0000 and half
// of a pair do, or a number of a thousand digits and more. The type json takes all that as it is written, and to convert
// it would fail, and everything that is read with it. (pg_input_is_valid tells it from PostgreSQL 16 on.)
func unreadable(column string) string {
	text := `replace(` + column + `::text, '\\', '')` // so that each \ that is left begins an escape
	const pairs = `'\\u[dD][89abAB]..\\u[dD][c-fC-F]..', '', 'g'`
	return `CASE WHEN pg_typeof(` + column + `) = 'json'::regtype THEN
    regexp_replace(` + text + `, ` + pairs + `) ~ '\\u(0000|[dD][89a-fA-F])'
    OR regexp_replace(replace(` + text + `, '\"', ''), '"[^"]*"', '', 'g') ~ '[eE][+]?[0-9]{3}' END`
}

// ReadHeaders reads headers as the bytes of their text, and nothing of those whose size is above the bound. The text is
// bounded too: a number of a few bytes may be written with many thousand digits, and what is cut off is no JSON any more.
func ReadHeaders(headers, size string) string {
	return "CASE WHEN " + size + " <= " + headersBound + " THEN substring(convert_to(" + headers +
		"::text, 'UTF8') FROM 1 FOR " + headersBound + ") END"
}
