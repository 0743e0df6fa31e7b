package nats

import (
	"strings"
	"unicode/utf8"
)

// validSubject says whether a name is one subject that a row may publish to: tokens without spaces, control characters
// or wildcards, none of them empty, and not a subject of the server's own ($JS.API can delete streams, $SYS can stop
// servers) or a reply inbox.
func validSubject(subject string) bool {
	if subject == "" || subject[0] == '$' || strings.HasPrefix(subject, "_INBOX.") || !utf8.ValidString(subject) {
		return false
	}
	last := byte('.')
	for i := range len(subject) {
		c := subject[i]
		if c <= ' ' || c == 0x7f || c == '*' || c == '>' || (c == '.' && last == '.') {
			return false
		}
		last = c
	}
	return last != '.'
}

// covers says whether a stream's or consumer's filter, with NATS's wildcards, matches all that the other matches.
func covers(filter, other string) bool {
	for {
		f, filterRest, filterMore := strings.Cut(filter, ".")
		o, otherRest, otherMore := strings.Cut(other, ".")
		switch {
		case f == ">":
			return true
		case o == ">", f != "*" && f != o:
			return false
		case !filterMore || !otherMore:
			return filterMore == otherMore
		}
		filter, other = filterRest, otherRest
	}
}

func anyCovers(filters []string, other string) bool {
	for _, filter := range filters {
		if covers(filter, other) {
			return true
		}
	}
	return false
}

// streamSubjects turns a destination and its allowed patterns into the subjects of a stream to be made: a star inside
// a token becomes a whole star, and what another subject covers is left out, as JetStream refuses overlaps.
func streamSubjects(fallback string, allowed []string) []string {
	all := []string{fallback}
	for _, pattern := range allowed {
		tokens := strings.Split(pattern, ".")
		for i, token := range tokens {
			if strings.Contains(token, "*") {
				tokens[i] = "*"
			}
		}
		all = append(all, strings.Join(tokens, "."))
	}
	var subjects []string
	for i, s := range all {
		covered := false
		for j, other := range all {
			if i != j && covers(other, s) && (!covers(s, other) || j < i) {
				covered = true
			}
		}
		if !covered {
			subjects = append(subjects, s)
		}
	}
	return subjects
}
