package manifest

import (
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
)

// line returns the line of a field in its file; of the nearest part around it where the field is not there.
func (d *document) line(path string) int {
	if d.root == nil {
		return d.start + 1
	}
	line, node := d.root.Line, d.root
	for _, step := range steps(path) {
		key, value := child(node, step)
		if value == nil {
			break
		}
		line, node = key.Line, value
	}
	return d.start + line
}

// steps cuts a path such as spec.routes[0].labels[example.com/team] into its names, indices and keys.
func steps(path string) []string {
	var out []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return append(out, path[1:])
			}
			out, path = append(out, path[1:end]), path[end+1:]
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			out, path = append(out, path[:end]), path[end:]
		}
	}
	return out
}

// child returns the node that names a member and the member itself; nil where there is none.
func child(node *yamlv3.Node, step string) (key, value *yamlv3.Node) {
	node = resolved(node)
	switch node.Kind {
	case yamlv3.SequenceNode:
		i, err := strconv.Atoi(step)
		if err != nil || i < 0 || i >= len(node.Content) {
			return nil, nil
		}
		return node.Content[i], node.Content[i]
	case yamlv3.MappingNode:
		return member(node, step)
	default:
		return nil, nil
	}
}

// member looks a name up in a mapping: its own members first, then those merged in by <<.
func member(node *yamlv3.Node, name string) (key, value *yamlv3.Node) {
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Value == name && node.Content[i].Tag != "!!merge" {
			return node.Content[i], node.Content[i+1]
		}
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		if node.Content[i].Tag != "!!merge" {
			continue
		}
		merged := resolved(node.Content[i+1])
		if merged.Kind == yamlv3.MappingNode {
			return member(merged, name)
		}
		for _, part := range merged.Content {
			if part = resolved(part); part.Kind == yamlv3.MappingNode {
				if key, value := member(part, name); value != nil {
					return key, value
				}
			}
		}
	}
	return nil, nil
}

func resolved(node *yamlv3.Node) *yamlv3.Node {
	for node.Kind == yamlv3.AliasNode && node.Alias != nil {
		node = node.Alias
	}
	return node
}
