package manifest

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// document is one YAML document of a file.
type document struct {
	file string
	// start is the line of the file before the document's first.
	start int
	// value is what a cluster would be sent: decoded as kubectl does, which follows YAML 1.1.
	value map[string]any
	// root is the same document for finding lines; nil where it cannot be read so.
	root *yamlv3.Node
}

// chunk is the text of one document and the number of lines before it.
type chunk struct {
	text  []byte
	start int
}

// split cuts a file at its document separators, so that a mistake in one document hides nothing in the others.
func split(file []byte) []chunk {
	var chunks []chunk
	current := chunk{}
	line := 0
	for text := range bytes.Lines(file) {
		line++
		rest, ok := bytes.CutPrefix(text, []byte("---"))
		if string(bytes.TrimRight(text, " \t\r\n")) == "..." {
			rest, ok = nil, true // the end of a document, whatever begins the next
		}
		if ok && separator(rest) {
			chunks = append(chunks, current)
			current = chunk{start: line}
			if rest = bytes.TrimSpace(rest); len(rest) > 0 && rest[0] != '#' {
				// "--- {a: 1}": the document begins on the separator's own line.
				current = chunk{text: append(rest, '\n'), start: line - 1}
			}
			continue
		}
		current.text = append(current.text, text...)
	}
	return append(chunks, current)
}

// separator says whether what follows --- on a line leaves it a separator.
func separator(rest []byte) bool {
	return len(bytes.TrimSpace(rest)) == 0 || rest[0] == ' ' || rest[0] == '\t'
}

// parse reads one document. It returns nil without problems for a document without content.
func parse(file string, c chunk) (*document, Problems) {
	doc := &document{file: file, start: c.start}
	// The empty line in front makes the parser count lines from 1, and name the first too.
	raw, err := yaml.YAMLToJSON(append([]byte("\n"), c.text...))
	if err != nil {
		return nil, doc.unreadable(c.text, err)
	}
	var root yamlv3.Node
	if yamlv3.Unmarshal(c.text, &root) == nil && len(root.Content) > 0 {
		doc.root = root.Content[0]
		if twice := doc.repeated(doc.root); len(twice) > 0 {
			return nil, twice // of two values one would silently win
		}
	}
	if string(raw) == "null" {
		return nil, nil
	}
	if err := utiljson.Unmarshal(raw, &doc.value); err != nil {
		return nil, Problems{doc.problem("", "must be a mapping with apiVersion and kind")}
	}
	return doc, nil
}

// problem is about a field of the document, at the line of the field or of the nearest part that is there.
func (d *document) problem(path, text string) Problem {
	return Problem{File: d.file, Line: d.line(path), Field: path, Text: text}
}

// repeated finds the keys that a mapping has twice. What << merges in may be overruled, which is no repetition.
func (d *document) repeated(node *yamlv3.Node) Problems {
	var problems Problems
	seen := make(map[string]bool)
	for i, child := range node.Content {
		if node.Kind == yamlv3.MappingNode && i%2 == 0 {
			if seen[child.Value] {
				problems = append(problems, Problem{
					File: d.file,
					Line: d.start + child.Line,
					Text: "the key " + clip(strconv.Quote(child.Value)) + " is there twice",
				})
			}
			seen[child.Value] = true
		}
		problems = append(problems, d.repeated(child)...)
	}
	return problems
}

var (
	lineNumber = regexp.MustCompile(`line (\d+): (.+)`)
	badAnchor  = regexp.MustCompile(`unknown anchor '(.*)' referenced`)
	// safeWords begin the parser's messages that repeat nothing of the text.
	safeWords = regexp.MustCompile(`^(did not find|found|could not find|mapping (values|keys)|` +
		`block sequence entries|control characters|(invalid|incomplete) )[a-zA-Z ,:'"\[\]{}<>%#-]*$`)
	// parserWords begin those messages whose line is counted from 0.
	parserWords = regexp.MustCompile(
		`^did not find expected (key|node content|<document start>|'-' indicator|',' or)`)
)

// unreadable turns the parser's error into problems. Its words are passed on only where they cannot repeat a value,
// since the document may be a Secret.
func (d *document) unreadable(text []byte, err error) Problems {
	var problems Problems
	for _, m := range lineNumber.FindAllStringSubmatch(err.Error(), -1) {
		n, _ := strconv.Atoi(m[1])
		if !parserWords.MatchString(m[2]) {
			n--
		}
		problems = append(problems, Problem{File: d.file, Line: d.start + max(n, 1), Text: yamlWords(m[2])})
	}
	if len(problems) > 0 {
		return problems
	}
	line := bytes.Count(text[:len(text)-len(bytes.TrimLeft(text, " \t\r\n"))], []byte("\n")) + 1
	if m := badAnchor.FindStringSubmatch(err.Error()); m != nil {
		line = bytes.Count(text[:max(bytes.Index(text, []byte("*"+m[1])), 0)], []byte("\n")) + 1
	}
	return Problems{{File: d.file, Line: d.start + line, Text: yamlWords(strings.TrimPrefix(err.Error(), "yaml: "))}}
}

func yamlWords(words string) string {
	switch {
	case badAnchor.MatchString(words):
		return "not valid YAML: *name refers to an anchor that is not there; put a text that begins with * in quotes"
	case safeWords.MatchString(words):
		return "not valid YAML: " + words
	default:
		return "not valid YAML"
	}
}

// decode fills a typed object from a value that passed its schema.
func decode[T any](value map[string]any) (*T, error) {
	raw, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	out := new(T)
	return out, json.Unmarshal(raw, out)
}
