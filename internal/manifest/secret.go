package manifest

import (
	"encoding/base64"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Origin is where an object was defined.
type Origin struct {
	File string
	Line int
}

// String returns file:line.
func (o Origin) String() string { return fmt.Sprintf("%s:%d", o.File, o.Line) }

// Secret is a Secret as far as workers use it: bytes by key.
type Secret struct {
	Namespace string
	Name      string
	Data      map[string]Redacted
	Origin    Origin
}

// ConfigMap is a ConfigMap as far as workers use it: bytes by key.
type ConfigMap struct {
	Namespace string
	Name      string
	Data      map[string][]byte
	Origin    Origin
}

// fields of the two kinds; what an API server fills in is taken as kubectl takes it.
var (
	secretFields    = []string{"apiVersion", "kind", "metadata", "type", "immutable", "data", "stringData"}
	configMapFields = []string{"apiVersion", "kind", "metadata", "immutable", "data", "binaryData"}
)

// section reads a map of texts. No problem of it repeats a value.
func (d *document) section(name string, use func(key, text string) string) Problems {
	raw, ok := d.value[name]
	if !ok || raw == nil {
		return nil
	}
	values, ok := raw.(map[string]any)
	if !ok {
		return Problems{d.problem(name, "must be a mapping of keys to texts")}
	}
	var problems Problems
	for _, key := range slices.Sorted(maps.Keys(values)) {
		path := name + "." + key
		if wrong := validation.IsConfigMapKey(key); len(wrong) > 0 {
			problems = append(problems, d.problem(path, "is not a key: use letters, digits, - _ and ."))
			continue
		}
		text, ok := values[key].(string)
		if values[key] == nil {
			ok = true // kubectl sends null, which is the empty text
		}
		if !ok {
			problems = append(problems, d.problem(path, "must be text: put the value in quotes"))
			continue
		}
		if wrong := use(key, text); wrong != "" {
			problems = append(problems, d.problem(path, wrong))
		}
	}
	return problems
}

func (d *document) unknownFields(known []string) Problems {
	var problems Problems
	for _, name := range slices.Sorted(maps.Keys(d.value)) {
		if !slices.Contains(known, name) {
			problems = append(problems, d.problem(name, unknownField(name, known)))
		}
	}
	return problems
}

// secret reads a Secret; stringData wins over data, as in a cluster.
func (d *document) secret(namespace, name string) (Secret, Problems) {
	s := Secret{Namespace: namespace, Name: name, Data: make(map[string]Redacted), Origin: d.origin()}
	problems := d.unknownFields(secretFields)
	problems = append(problems, d.section("data", func(key, text string) string {
		value, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "is not base64: encode it, or write it as it is under stringData"
		}
		s.Data[key] = Redacted{value}
		return ""
	})...)
	problems = append(problems, d.section("stringData", func(key, text string) string {
		s.Data[key] = Redacted{[]byte(text)}
		return ""
	})...)
	return s, problems
}

// configMap reads a ConfigMap.
func (d *document) configMap(namespace, name string) (ConfigMap, Problems) {
	c := ConfigMap{Namespace: namespace, Name: name, Data: make(map[string][]byte), Origin: d.origin()}
	problems := d.unknownFields(configMapFields)
	problems = append(problems, d.section("data", func(key, text string) string {
		c.Data[key] = []byte(text)
		return ""
	})...)
	problems = append(problems, d.section("binaryData", func(key, text string) string {
		value, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			return "is not base64: encode it, or write it as it is under data"
		}
		if _, twice := c.Data[key]; twice {
			return "is in data too: keep one of the two"
		}
		c.Data[key] = value
		return ""
	})...)
	return c, problems
}

// origin is where the document begins.
func (d *document) origin() Origin { return Origin{File: d.file, Line: d.line("")} }
