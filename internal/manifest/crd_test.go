package manifest

import (
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"sigs.k8s.io/yaml"

	"github.com/postrider/postrider/config/crd"
)

// The API server refuses a definition that is not structural, has a default that breaks a rule or a rule
// that may cost too much; these are its own checks.
func TestTheAPIServerWouldAcceptTheDefinitions(t *testing.T) {
	t.Parallel()
	entries, err := crd.Files.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) == 0 {
		t.Fatal("no definition is embedded")
	}
	for _, e := range entries {
		t.Run(e.Name(), func(t *testing.T) {
			t.Parallel()
			raw, err := crd.Files.ReadFile(e.Name())
			if err != nil {
				t.Fatal(err)
			}
			if len(raw) > 200_000 {
				t.Errorf("definition has %d bytes, more than 200,000", len(raw))
			}
			var v1 apiextensionsv1.CustomResourceDefinition
			if err := yaml.UnmarshalStrict(raw, &v1); err != nil {
				t.Fatal(err)
			}
			apiextensionsv1.SetDefaults_CustomResourceDefinition(&v1)
			apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&v1.Spec)
			v1.Status.StoredVersions = []string{"v1alpha1"}
			var def apiextensions.CustomResourceDefinition
			if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(
				&v1, &def, nil); err != nil {
				t.Fatal(err)
			}
			for _, err := range validation.ValidateCustomResourceDefinition(t.Context(), &def) {
				t.Error(err)
			}
		})
	}
}
