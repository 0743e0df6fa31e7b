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

// ReadHeaders reads headers as the bytes of their text, and nothing of those whose size is above the bound. The text is
// bounded too: a number of a few bytes may be written with many thousand digits, and what is cut off is no JSON any more.
func ReadHeaders(headers, size string) string {
	return "CASE WHEN " + size + " <= " + headersBound + " THEN substring(convert_to(" + headers +
		"::text, 'UTF8') FROM 1 FOR " + headersBound + ") END"
}
