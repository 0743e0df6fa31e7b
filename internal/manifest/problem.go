package manifest

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Problem is one thing wrong in a file.
type Problem struct {
	File string
	// Line counts from 1; 0 where the file as a whole is wrong.
	Line int
	// Field is the path of the field, such as "spec.batch.maxMessages"; empty where it is not about one.
	Field string
	// Text says what is wrong and what to do about it. It never holds a value of a Secret.
	Text string
}

// String returns the problem in one line: file:line: field: text.
func (p Problem) String() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		b.WriteString(":" + strconv.Itoa(p.Line))
	}
	if p.Field != "" {
		b.WriteString(": " + p.Field)
	}
	return b.String() + ": " + p.Text
}

// Problems is everything wrong in what was loaded, by file and line.
type Problems []Problem

// Error returns one line a problem.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i := range p {
		lines[i] = p[i].String()
	}
	return strings.Join(lines, "\n")
}

func (p Problems) sorted() Problems {
	slices.SortStableFunc(p, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Field, b.Field))
	})
	return slices.Compact(p)
}

// wordings turn the schema validator's texts into what a person should do. What follows its "in body " is matched.
var wordings = []struct {
	form *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`^should be less than or equal to (\S+)$`), "must be at most $1"},
	{regexp.MustCompile(`^should be greater than or equal to (\S+)$`), "must be at least $1"},
	{regexp.MustCompile(`^should be at least 1 chars long$`), "must not be empty"},
	{regexp.MustCompile(`^should be at least (\d+) chars long$`), "must be at least $1 characters long"},
	{regexp.MustCompile(`^should have at least (\d+) items$`), "must have at least $1 entries"},
	{
		regexp.MustCompile(`^must be of type integer,string: "(\w+)"$`),
		`must be a quantity such as 512Ki, 4Mi or "0.5", not $1`,
	},
	{regexp.MustCompile(`^must be of type int(?:32|64): "float64"$`), "must be a whole number, and not so large"},
	{regexp.MustCompile(`^Checked value must be of type .*$`), "must be a whole number, and not so large"},
	{regexp.MustCompile(`^must be of type (\w+): "(\w+)"$`), "must be of type $1, not $2"},
	{regexp.MustCompile(`^must be of type (\w+): .*$`), "must be of type $1"},
	// The one pattern of the schemas is that of quantities.
	{regexp.MustCompile(`^should match .*$`), "must be a quantity such as 512Ki, 4Mi or 0.5"},
}

// wording says what is wrong with a field. It repeats a value only where the field's words are listed.
func wording(e *field.Error) string {
	switch e.Type {
	case field.ErrorTypeRequired:
		if e.Detail != "" {
			return "must be set: " + e.Detail
		}
		return "must be set"
	case field.ErrorTypeNotSupported:
		words := strings.TrimPrefix(e.Detail, "supported values: ")
		return fmt.Sprintf("must be one of %s, not %s", clip(words), clip(fmt.Sprintf("%q", fmt.Sprint(e.BadValue))))
	case field.ErrorTypeDuplicate:
		return "is listed twice"
	case field.ErrorTypeTooLong:
		return strings.Replace(e.Detail, "may not be more than", "must not be longer than", 1)
	case field.ErrorTypeTooMany:
		return strings.Replace(e.Detail, "must have at most", "must not have more than", 1)
	default:
		text := e.Detail
		if _, after, ok := strings.Cut(text, " in body "); ok {
			text = after
		}
		for _, w := range wordings {
			if w.form.MatchString(text) {
				return w.form.ReplaceAllString(text, w.text)
			}
		}
		return text
	}
}

// clip bounds a text that goes into an error.
func clip(s string) string {
	const most = 200
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
