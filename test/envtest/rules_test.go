//go:build kubernetes

package envtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/test/rules"
)

// cases is where the cases of the rules are.
const cases = "../../internal/manifest/testdata"

// The API server accepts and refuses what `postrider validate` does, strictly as kubectl asks it to, and names one of
// the same fields.
func TestTheServerHasTheSameRules(t *testing.T) {
	t.Parallel()
	strict := client.WithFieldValidation(theBed.admin, "Strict")
	stored := newSpace(t)
	for _, kind := range []string{v1alpha1.KindOutboxRelay, v1alpha1.KindInboxConsumer} {
		u := &unstructured.Unstructured{Object: rules.Least(t, cases, kind)}
		u.SetNamespace(stored.name)
		if err := strict.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	empty := newSpace(t)
	for name, tc := range rules.Load(t, cases) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			u := &unstructured.Unstructured{Object: tc.Object}
			var err error
			if tc.Old != nil {
				u.SetNamespace(stored.name)
				err = retry.RetryOnConflict(retry.DefaultBackoff, func() error { // the operator writes its status
					now := &unstructured.Unstructured{}
					now.SetGroupVersionKind(u.GroupVersionKind())
					if err := theBed.admin.Get(t.Context(), client.ObjectKeyFromObject(u), now); err != nil {
						t.Fatal(err)
					}
					u.SetResourceVersion(now.GetResourceVersion())
					return strict.Update(t.Context(), u, client.DryRunAll)
				})
			} else {
				if _, named := tc.Object["metadata"].(map[string]any); named {
					u.SetNamespace(empty.name)
				}
				err = strict.Create(t.Context(), u, client.DryRunAll)
			}
			switch {
			case len(tc.Refuse) == 0 && err != nil:
				t.Errorf("refused: %v", err)
			case len(tc.Refuse) > 0 && err == nil:
				t.Errorf("accepted, want it refused with %v", tc.Refuse)
			case err != nil && !named(err, tc.Refuse):
				t.Errorf("refused with %v, want one of %v", err, tc.Refuse)
			}
		})
	}
}

// named says whether an answer of the server is about one of the fields.
func named(err error, refuse []string) bool {
	if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
		return false
	}
	return slices.ContainsFunc(refuse, func(r string) bool {
		field, _, _ := strings.Cut(r, ": ")
		return strings.Contains(err.Error(), field)
	})
}

// What is stored of the least resource is what `postrider up` takes it for.
func TestTheServerStoresTheSameDefaults(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	for kind, file := range map[string]string{
		v1alpha1.KindOutboxRelay: "relay.defaults.yaml", v1alpha1.KindInboxConsumer: "consumer.defaults.yaml",
	} {
		u := &unstructured.Unstructured{Object: rules.Least(t, cases, kind)}
		u.SetNamespace(s.name)
		if err := s.admin.Create(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(filepath.Join(cases, file))
		if err != nil {
			t.Fatal(err)
		}
		var want map[string]any
		if err := yaml.Unmarshal(raw, &want); err != nil {
			t.Fatal(err)
		}
		got := rules.Plain(t, u.Object["spec"])
		if diff := cmp.Diff(rules.Plain(t, want["spec"]), got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
}

// Security T1: a reference has no namespace. What is written there is refused, or pruned by clients that do not ask.
func TestAReferenceLeadsNowhereElse(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	u := &unstructured.Unstructured{Object: rules.Least(t, cases, v1alpha1.KindOutboxRelay)}
	u.SetNamespace(s.name)
	at := []string{"spec", "source", "postgres", "credentialsSecretRef", "namespace"}
	if err := unstructured.SetNestedField(u.Object, "kube-system", at...); err != nil {
		t.Fatal(err)
	}
	strict := client.WithFieldValidation(theBed.admin, "Strict")
	if err := strict.Create(t.Context(), u.DeepCopy(), client.DryRunAll); !apierrors.IsBadRequest(err) {
		t.Errorf("strict: %v, want it refused", err)
	}
	if err := s.admin.Create(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if value, found, _ := unstructured.NestedString(u.Object, at...); found {
		t.Errorf("namespace %q is stored", value)
	}
}
