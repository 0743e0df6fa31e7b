package manifest

import (
	"maps"
	"slices"
	"strings"

	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// unknown says what is wrong with a field that the kind does not have.
func (s *Schema) unknown(path string) string {
	way := steps(path)
	if way[0] == "metadata" {
		return unknownField(way[len(way)-1], nil)
	}
	known := slices.Collect(maps.Keys(members(s.structural, way[:len(way)-1])))
	slices.Sort(known)
	return unknownField(way[len(way)-1], known)
}

// members returns the fields that an object has at a path; nil where it cannot tell.
func members(s *structural.Structural, way []string) map[string]structural.Structural {
	for _, step := range way {
		next, ok := s.Properties[step]
		switch {
		case ok:
			s = &next
		case s.Items != nil:
			s = s.Items
		case s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil:
			s = s.AdditionalProperties.Structural
		default:
			return nil
		}
	}
	return s.Properties
}

// unknownField names the field that was probably meant.
func unknownField(name string, known []string) string {
	best, least := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	if best == "" {
		return "is not a known field"
	}
	return "is not a known field; did you mean " + best + "?"
}

// distance counts the letters to insert, delete or change to make one text of the other.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			diagonal, row[j+1] = row[j+1], min(row[j+1]+1, row[j]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}
