package schema

import (
	"regexp"
	"slices"
	"strings"
)

// The forms in which our own migrations are written; a test holds them to what the catalog says after Apply.
var (
	createTable = regexp.MustCompile(`^CREATE TABLE (\{[a-z0-9_:]+\}) \(`)
	partitionOf = regexp.MustCompile(`^CREATE TABLE (\{[a-z0-9_:]+\}) PARTITION OF (\{[a-z0-9_:]+\})`)
	createIndex = regexp.MustCompile(`^CREATE (?:UNIQUE )?INDEX \{name:([a-z0-9_]+)\} ON (\{[a-z0-9_]+\})`)
	addColumn   = regexp.MustCompile(`^ALTER TABLE (\{[a-z0-9_]+\}) ADD COLUMN (.+)$`)
	createFunc  = regexp.MustCompile(`^CREATE (?:OR REPLACE )?FUNCTION (\{[a-z0-9_]+\})\(`)
	addCheck    = regexp.MustCompile(`^ALTER TABLE (\{[a-z0-9_]+\}) ADD CONSTRAINT \{name:([a-z0-9_]+)\} CHECK`)
	createTrig  = regexp.MustCompile(`^CREATE TRIGGER \{name:([a-z0-9_]+)\} [A-Z ]+ ON (\{[a-z0-9_]+\})`)
	columnLine  = regexp.MustCompile(`^\s+([a-z_]+)\s+("char"|[a-z]+)(.*?),?$`)
)

// column is one column as a migration makes it.
type column struct {
	name, kind string // the type as the catalog's format_type names it
	definition string // as written: name, type and the rest
}

// object is a table, partition, index, function, constraint or trigger that a migration makes. Names are tokens such as {outbox_gate}.
type object struct {
	token   string
	on      string // the table of all but a table or function
	kind    objectKind
	ddl     string
	columns []column
}

// arguments is how many a function takes. A trigger's takes none; the other is the writer.
func (w object) arguments() int {
	if strings.Contains(w.ddl, "() RETURNS trigger") {
		return 0
	}
	return strings.Count(writerArguments, ",") + 1
}

type objectKind uint8

const (
	table objectKind = iota
	partition
	index
	function
	constraint
	trigger
)

// statements splits a migration at the semicolons that end a line, comments taken off, bodies of functions kept whole.
func statements(sql string) []string {
	var all []string
	var current []string
	body := false
	for line := range strings.Lines(sql) {
		line = strings.TrimRight(line, "\n ")
		if len(current) == 0 && (line == "" || strings.HasPrefix(line, "--")) {
			continue
		}
		if strings.Count(line, "$write$")%2 == 1 {
			body = !body
		}
		current = append(current, line)
		if !body && strings.HasSuffix(line, ";") {
			all = append(all, strings.TrimSuffix(strings.Join(current, "\n"), ";"))
			current = nil
		}
	}
	return all
}

// objects lists what the steps make, in the order of making.
func objects(steps []migration) []object {
	var all []object
	for _, step := range steps {
		for _, s := range statements(step.sql) {
			all = addObject(all, s)
		}
	}
	return all
}

func addObject(all []object, s string) []object {
	if m := partitionOf.FindStringSubmatch(s); m != nil {
		return append(all, object{kind: partition, token: m[1], on: m[2], ddl: s})
	}
	if m := createTable.FindStringSubmatch(s); m != nil {
		return append(all, object{kind: table, token: m[1], ddl: s, columns: columnsOf(s)})
	}
	if m := createIndex.FindStringSubmatch(s); m != nil {
		return append(all, object{kind: index, token: "{" + m[1] + "}", on: m[2], ddl: s})
	}
	if m := createFunc.FindStringSubmatch(s); m != nil {
		return append(all, object{kind: function, token: m[1], ddl: s})
	}
	if m := addCheck.FindStringSubmatch(s); m != nil {
		return append(all, object{kind: constraint, token: "{" + m[2] + "}", on: m[1], ddl: s})
	}
	if m := createTrig.FindStringSubmatch(s); m != nil {
		return append(all, object{kind: trigger, token: "{" + m[1] + "}", on: m[2], ddl: s})
	}
	if m := addColumn.FindStringSubmatch(s); m != nil {
		at := slices.IndexFunc(all, func(o object) bool { return o.kind == table && o.token == m[1] })
		if c, ok := parseColumn("  " + m[2]); ok && at >= 0 {
			all[at].columns = append(all[at].columns, c)
		}
	}
	return all
}

func columnsOf(createTable string) []column {
	var columns []column
	for line := range strings.Lines(createTable) {
		if c, ok := parseColumn(strings.TrimRight(line, "\n")); ok {
			columns = append(columns, c)
		}
	}
	return columns
}

func parseColumn(line string) (column, bool) {
	m := columnLine.FindStringSubmatch(line)
	if m == nil {
		return column{}, false
	}
	kind := m[2]
	switch kind {
	case "int":
		kind = "integer"
	case "timestamptz":
		kind = "timestamp with time zone"
	}
	return column{name: m[1], kind: kind, definition: strings.TrimSuffix(strings.TrimSpace(line), ",")}, true
}
