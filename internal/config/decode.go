package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// decode reads one JSON object into the struct that into points to. It is stricter than encoding/json,
// which takes a field in any case, takes the last of two, and does not say where an unknown one stands:
// between the planes a field that one side does not know must never pass in silence. Only in a file of the next version
// there are fields that this one cannot know, and can do without.
func decode(b []byte, into any) error {
	if !json.Valid(b) {
		return &InvalidError{Problems: []Problem{{Text: syntaxProblem(b)}}}
	}
	var head struct {
		Version int `json:"version"`
	}
	d := decoder{}
	if err := json.Unmarshal(b, &head); err == nil { // else the field is refused below
		d.newer = head.Version == Version+1
	}
	d.value("", b, reflect.ValueOf(into).Elem())
	if len(d.problems) > 0 {
		return &InvalidError{Problems: d.problems}
	}
	return nil
}

// maxProblems bounds an error line: nobody reads further, and a hostile file cannot fill the log.
const maxProblems = 64

type decoder struct {
	problems []Problem
	newer    bool
}

func (d *decoder) refuse(path, format string, args ...any) {
	if len(d.problems) < maxProblems {
		d.problems = append(d.problems, Problem{Field: path, Text: fmt.Sprintf(format, args...)})
	}
}

func (d *decoder) value(path string, raw json.RawMessage, v reflect.Value) {
	raw = bytes.TrimSpace(raw)
	if string(raw) == "null" {
		if v.Kind() != reflect.Pointer {
			d.refuse(path, "is null")
		}
		return
	}
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch v.Kind() {
	case reflect.Struct:
		d.object(path, raw, v)
	case reflect.Slice:
		d.list(path, raw, v)
	default:
		d.scalar(path, raw, v)
	}
}

func (d *decoder) object(path string, raw json.RawMessage, v reflect.Value) {
	fields := fieldsOf(v.Type())
	seen := make(map[string]bool, len(fields))
	tokens := json.NewDecoder(bytes.NewReader(raw))
	if first, err := tokens.Token(); err != nil || first != json.Delim('{') {
		d.refuse(path, "must be an object")
		return
	}
	for tokens.More() {
		// The input is known to be valid JSON, so a key is a string and has a value.
		key, _ := tokens.Token()
		name, _ := key.(string)
		var value json.RawMessage
		if err := tokens.Decode(&value); err != nil {
			d.refuse(join(path, name), "cannot be read")
			return
		}
		index, known := fields[name]
		switch {
		case !known && d.newer:
		case !known:
			d.refuse(join(path, printable(name)), "is not a field of this version")
		case seen[name]:
			d.refuse(join(path, name), "is given twice")
		default:
			seen[name] = true
			d.value(join(path, name), value, v.Field(index))
		}
	}
}

func (d *decoder) list(path string, raw json.RawMessage, v reflect.Value) {
	var items []json.RawMessage
	if err := json.Unmarshal(raw, &items); err != nil {
		d.refuse(path, "must be a list")
		return
	}
	v.Set(reflect.MakeSlice(v.Type(), len(items), len(items)))
	for i, item := range items {
		d.value(fmt.Sprintf("%s[%d]", path, i), item, v.Index(i))
	}
}

func (d *decoder) scalar(path string, raw json.RawMessage, v reflect.Value) {
	err := json.Unmarshal(raw, v.Addr().Interface())
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
	case errors.As(err, &wrongType) && wrongType.Value == "number "+string(raw):
		d.refuse(path, "%s is not a whole number in range", printable(string(raw)))
	case errors.As(err, &wrongType):
		d.refuse(path, "must be a %s, not a %s", jsonKind(v.Kind()), wrongType.Value)
	default:
		d.refuse(path, "%s", err)
	}
}

// fieldsOf maps the JSON names of a struct to its fields.
func fieldsOf(t reflect.Type) map[string]int {
	fields := make(map[string]int, t.NumField())
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		fields[name] = i
	}
	return fields
}

func jsonKind(k reflect.Kind) string {
	if k == reflect.String {
		return "string"
	}
	return "number"
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// printable shortens and quotes a text of the file that may be anything.
func printable(s string) string {
	const most = 64
	if len(s) > most {
		s = s[:most]
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return fmt.Sprintf("%q", s)
	}
	return s
}

// syntaxProblem says where the text stops being JSON.
func syntaxProblem(b []byte) string {
	var ignored json.RawMessage
	err := json.Unmarshal(b, &ignored)
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return "it is not JSON"
	}
	before := b[:min(int(syntax.Offset), len(b))]
	return fmt.Sprintf("line %d: it is not one JSON object: %s", bytes.Count(before, []byte("\n"))+1, syntax)
}
