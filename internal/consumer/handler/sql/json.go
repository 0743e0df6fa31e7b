package sql

import (
	"encoding/json"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/postrider/postrider/internal/deadletter"
	"github.com/postrider/postrider/internal/verdict"
)

// checkJSON says why jsonb would not take the data, before a statement fails for it: what is settled by the bytes alone
// needs no attempts. The order matters: depth is bounded before anything else reads the data.
func checkJSON(b []byte, maxDepth int) *verdict.Refusal {
	if !shallow(b, maxDepth) {
		return &verdict.Refusal{
			Reason: deadletter.PayloadTooDeep,
			Detail: "the data is nested deeper than " + strconv.Itoa(maxDepth) + " levels",
		}
	}
	if !utf8.Valid(b) {
		return &verdict.Refusal{Reason: deadletter.UnstorableText, Detail: "the data is not UTF-8"}
	}
	if !json.Valid(b) {
		return &verdict.Refusal{
			Reason: deadletter.InvalidPayload,
			Detail: "the data is not JSON, and the route reads @data",
		}
	}
	if !storableEscapes(b) {
		return &verdict.Refusal{
			Reason: deadletter.UnstorableText,
			Detail: "the data holds \\u0000 or half of a surrogate pair, which jsonb refuses",
		}
	}
	return nil
}

// shallow counts brackets outside of strings; it needs no valid JSON.
func shallow(b []byte, maxDepth int) bool {
	depth, inString := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case inString:
			switch c {
			case '\\':
				i++
			case '"':
				inString = false
			}
		case c == '"':
			inString = true
		case c == '{' || c == '[':
			depth++
			if depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// storableEscapes says whether every \u escape of valid JSON names a character that PostgreSQL's text can hold.
func storableEscapes(b []byte) bool {
	for i := 0; i < len(b); {
		if b[i] != '\\' {
			i++
			continue
		}
		if b[i+1] != 'u' {
			i += 2
			continue
		}
		r := escape(b[i:])
		i += 6
		if r == 0 {
			return false
		}
		if !utf16.IsSurrogate(r) {
			continue
		}
		if i+1 >= len(b) || b[i] != '\\' || b[i+1] != 'u' || utf16.DecodeRune(r, escape(b[i:])) == utf8.RuneError {
			return false
		}
		i += 6
	}
	return true
}

// escape reads \uXXXX.
func escape(b []byte) rune {
	n, err := strconv.ParseUint(string(b[2:6]), 16, 32)
	if err != nil {
		return 0 // not in valid JSON; refusing it is right
	}
	return rune(n) //nolint:gosec // four hexadecimal digits
}
