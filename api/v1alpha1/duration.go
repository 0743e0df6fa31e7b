package v1alpha1

import (
	"fmt"
	"time"
)

// Duration is a length of time written as text: one to four numbers of at most five digits, each with a
// unit h, m, s or ms, such as "30s", "500ms" or "1h30m". It is kept as written, so that Git and the
// cluster never differ.
// +kubebuilder:validation:MinLength=2
// +kubebuilder:validation:MaxLength=32
// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]{1,5}(h|m|s|ms)){1,4}$')",message="must be a duration such as 500ms, 30s or 1h30m"
type Duration string

// Parse returns the length of time. A duration that the schema accepted always parses.
func (d Duration) Parse() (time.Duration, error) {
	v, err := time.ParseDuration(string(d))
	if err != nil {
		return 0, fmt.Errorf("%q is not a duration such as 500ms, 30s or 1h30m", string(d))
	}
	return v, nil
}
