package manifest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/config/crd"
)

// Schemas are the rules of every kind of ours. They are safe for concurrent use.
type Schemas struct{ kinds map[string]*Schema }

// Schema is the rules of one kind, as its CustomResourceDefinition states them, carried out by the API
// server's own code.
type Schema struct {
	kind       string
	structural *structural.Structural
	validator  validation.SchemaValidator
	cel        *cel.Validator
}

// LoadSchemas reads the embedded definitions and compiles their rules.
func LoadSchemas() (*Schemas, error) {
	entries, err := crd.Files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("list definitions: %w", err)
	}
	schemas := &Schemas{kinds: make(map[string]*Schema)}
	for _, e := range entries {
		raw, err := crd.Files.ReadFile(path.Clean(e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read definition: %w", err)
		}
		s, err := newSchema(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name(), err)
		}
		schemas.kinds[s.kind] = s
	}
	return schemas, nil
}

// Kind returns the rules of a kind, and whether it is one of ours.
func (s *Schemas) Kind(kind string) (*Schema, bool) {
	found, ok := s.kinds[kind]
	return found, ok
}

// Kinds lists our kinds, sorted.
func (s *Schemas) Kinds() []string { return slices.Sorted(maps.Keys(s.kinds)) }

func newSchema(raw []byte) (*Schema, error) {
	var def apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(raw, &def); err != nil {
		return nil, fmt.Errorf("read definition: %w", err)
	}
	version := slices.IndexFunc(def.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool {
		return v.Name == v1alpha1.GroupVersion.Version
	})
	if version < 0 || def.Spec.Versions[version].Schema == nil {
		return nil, errors.New("definition has no version " + v1alpha1.GroupVersion.Version)
	}
	var internal apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		def.Spec.Versions[version].Schema.OpenAPIV3Schema, &internal, nil); err != nil {
		return nil, fmt.Errorf("convert schema: %w", err)
	}
	shape, err := structural.NewStructural(&internal)
	if err != nil {
		return nil, fmt.Errorf("schema is not structural: %w", err)
	}
	if err := defaulting.PruneDefaults(shape); err != nil {
		return nil, fmt.Errorf("prune defaults: %w", err)
	}
	validator, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, fmt.Errorf("make validator: %w", err)
	}
	return &Schema{
		kind:       def.Spec.Names.Kind,
		structural: shape,
		validator:  validator,
		cel:        cel.NewValidator(shape, true, celconfig.PerCallLimit),
	}, nil
}

// Prune drops the fields that the kind does not have, as the API server does, and returns their paths, sorted.
func (s *Schema) Prune(obj map[string]any) []string {
	unknown := pruning.PruneWithOptions(obj, s.structural, true,
		structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	defaulting.PruneNonNullableNullsWithoutDefaults(obj, s.structural)
	if _, _, inMetadata, err := objectmeta.GetObjectMetaWithOptions(obj,
		objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true}); err == nil {
		unknown = append(unknown, inMetadata...)
	}
	slices.Sort(unknown)
	return unknown
}

// Default fills in what the schema gives to fields that are not set, as the API server does.
func (s *Schema) Default(obj map[string]any) { defaulting.Default(obj, s.structural) }

// Validate checks an object that was pruned and defaulted: as a new one where old is nil, else as an update of
// old, whose unchanged faults are tolerated.
//
// It finds what the API server would find, and more: the server leaves out all CEL rules while a required field is
// missing or has a wrong type; here the rules that can be judged all the same are.
func (s *Schema) Validate(ctx context.Context, old, obj map[string]any) field.ErrorList {
	errs := validateMetadata(obj)
	var celOptions []cel.Option
	if old == nil {
		errs = append(errs, validation.ValidateCustomResource(nil, obj, s.validator)...)
	} else {
		correlated := common.NewCorrelatedObject(obj, old, &model.Structural{Structural: s.structural})
		celOptions = append(celOptions, cel.WithRatcheting(correlated))
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, obj, old, s.validator,
			validation.WithRatcheting(correlated))...)
	}
	errs = typesOnce(errs)
	if old == nil || len(listtype.ValidateListSetsAndMaps(nil, s.structural, old)) == 0 {
		errs = append(errs, listtype.ValidateListSetsAndMaps(nil, s.structural, obj)...)
	}
	// A nil map must reach the rules as a nil interface, or transition rules run on creation.
	var before any
	if old != nil {
		before = old
	}
	rules, _ := s.cel.Validate(ctx, nil, s.structural, obj, before, celconfig.RuntimeCELCostBudget, celOptions...)
	return append(errs, judged(errs, rules)...)
}

// judged leaves out the rule errors that only repeat another error: rules on a part with a broken field, and rules
// that could not be carried out while anything else is wrong.
func judged(others, rules field.ErrorList) field.ErrorList {
	var kept, failed field.ErrorList
	for _, rule := range rules {
		if rule.Field == (*field.Path)(nil).String() {
			// Rules of the whole object are about its name, since they see nothing else of metadata, and no path of
			// theirs may lead there.
			rule.Field, rule.Detail = "metadata.name", strings.TrimPrefix(rule.Detail, "metadata.name ")
		}
		broken := slices.ContainsFunc(others, func(e *field.Error) bool {
			return e.Type != field.ErrorTypeInvalid && within(e.Field, rule.Field)
		})
		switch {
		case broken:
		case strings.Contains(rule.Detail, " evaluating rule: "):
			failed = append(failed, rule)
		default:
			kept = append(kept, rule)
		}
	}
	if len(others)+len(kept) == 0 {
		return failed
	}
	return kept
}

// within says whether a field path lies in a part, the part itself included.
func within(path, part string) bool {
	rest, ok := strings.CutPrefix(path, part)
	return ok && (part == "" || rest == "" || rest[0] == '.' || rest[0] == '[')
}

// placeless are the validator's errors that name the field in their text instead: whole numbers, and values of several
// types.
var placeless = regexp.MustCompile(`^Checked value must be of type .* in (\S+)$|^"(\S+)" must validate .*\(anyOf\)$`)

// typesOnce gives every error its field, and leaves one error of a field whose value has a wrong type, besides the words
// that it may hold: the validator says it in up to four ways, and what else it says of such a value misleads.
func typesOnce(errs field.ErrorList) field.ErrorList {
	var placed, spare field.ErrorList
	first := make(map[string]*field.Error)
	for _, e := range errs {
		if m := placeless.FindStringSubmatch(e.Detail); m != nil && e.Field == (*field.Path)(nil).String() {
			spare = append(spare, &field.Error{Type: field.ErrorTypeTypeInvalid, Field: m[1] + m[2], Detail: e.Detail})
			continue
		}
		placed = append(placed, e)
	}
	for _, e := range spare { // only what nothing else is said of
		if !slices.ContainsFunc(placed, func(other *field.Error) bool { return other.Field == e.Field }) {
			placed = append(placed, e)
		}
	}
	return slices.DeleteFunc(placed, func(e *field.Error) bool {
		if e.Type == field.ErrorTypeTypeInvalid && first[e.Field] == nil {
			first[e.Field] = e
		}
		return first[e.Field] != nil && first[e.Field] != e && e.Type != field.ErrorTypeNotSupported
	})
}

// metadataTypes names the labels and annotations that are no texts: mostly numbers, and words that YAML takes for truth
// values.
func metadataTypes(at *field.Path, obj map[string]any) field.ErrorList {
	var errs field.ErrorList
	meta, _ := obj["metadata"].(map[string]any)
	for _, name := range []string{"annotations", "labels"} {
		values, _ := meta[name].(map[string]any)
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if _, text := values[key].(string); !text && values[key] != nil {
				errs = append(
					errs,
					field.TypeInvalid(at.Child(name).Key(key), "", "must be text: put the value in quotes"),
				)
			}
		}
	}
	if len(errs) == 0 {
		errs = append(errs, field.TypeInvalid(at, "", "has a field of a wrong type"))
	}
	return errs
}

// validateMetadata checks names, labels and annotations.
func validateMetadata(obj map[string]any) field.ErrorList {
	at := field.NewPath("metadata")
	meta, _, err := objectmeta.GetObjectMeta(obj, false)
	if err != nil {
		return metadataTypes(at, obj)
	}
	if meta == nil {
		return field.ErrorList{field.Required(at, "")}
	}
	return apivalidation.ValidateObjectMeta(meta, true, apivalidation.NameIsDNSSubdomain, at)
}
