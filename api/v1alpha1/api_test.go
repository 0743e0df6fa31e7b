package v1alpha1_test

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/postrider/postrider/api/v1alpha1"
)

func TestDurationsParseAsTheSchemaAcceptsThem(t *testing.T) {
	t.Parallel()
	for text, want := range map[v1alpha1.Duration]time.Duration{
		"500ms": 500 * time.Millisecond, "30s": 30 * time.Second, "1h30m": 90 * time.Minute, "0s": 0,
		// The longest that the form allows still fits.
		"99999h99999h99999h99999h": 4 * 99999 * time.Hour,
	} {
		got, err := text.Parse()
		if err != nil || got != want {
			t.Errorf("%q parses as %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []v1alpha1.Duration{"", "30", "7d", "soon"} {
		if got, err := text.Parse(); err == nil {
			t.Errorf("%q parses as %v, want an error", text, got)
		}
	}
}

func TestSchemeKnowsTheKinds(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{
		v1alpha1.KindOutboxRelay, v1alpha1.KindOutboxRelay + "List",
		v1alpha1.KindInboxConsumer, v1alpha1.KindInboxConsumer + "List",
	} {
		obj, err := scheme.New(v1alpha1.GroupVersion.WithKind(kind))
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			continue
		}
		if copied := obj.DeepCopyObject(); copied == obj {
			t.Errorf("%s is its own copy", kind)
		}
	}
}
