package manifest

import (
	"slices"

	"github.com/postrider/postrider/api/v1alpha1"
	"github.com/postrider/postrider/internal/desired"
)

// Relay is a loaded relay, complete with its defaults.
type Relay struct {
	*v1alpha1.OutboxRelay
	Origin Origin
}

// Consumer is a loaded consumer, complete with its defaults.
type Consumer struct {
	*v1alpha1.InboxConsumer
	Origin Origin
}

// Ignored is an object of a kind that is none of ours.
type Ignored struct {
	// Kind is the object's apiVersion and kind, such as "apps/v1 Deployment".
	Kind   string
	Name   string
	Origin Origin
}

// Set is what was loaded, in the order of files and documents.
type Set struct {
	Relays     []Relay
	Consumers  []Consumer
	Secrets    []Secret
	ConfigMaps []ConfigMap
	Ignored    []Ignored
}

// Resources counts the relays and consumers.
func (s *Set) Resources() int { return len(s.Relays) + len(s.Consumers) }

// Files returns the content that a reference names: bytes by key, those of the reference's keys only.
// It is complete for every reference of a set that loaded without problems, unless references were not checked.
func (s *Set) Files(namespace string, ref desired.Reference) map[string]Redacted {
	files := make(map[string]Redacted, len(ref.Keys))
	for _, key := range ref.Keys {
		if value, ok := s.value(namespace, ref, key); ok {
			files[key] = value
		}
	}
	return files
}

func (s *Set) value(namespace string, ref desired.Reference, key string) (Redacted, bool) {
	if ref.Kind == desired.KindConfigMap {
		if i := s.configMap(namespace, ref.Name); i >= 0 {
			value, ok := s.ConfigMaps[i].Data[key]
			return Redacted{value}, ok
		}
		return Redacted{}, false
	}
	if i := s.secret(namespace, ref.Name); i >= 0 {
		value, ok := s.Secrets[i].Data[key]
		return value, ok
	}
	return Redacted{}, false
}

func (s *Set) secret(namespace, name string) int {
	return slices.IndexFunc(s.Secrets, func(o Secret) bool { return o.Namespace == namespace && o.Name == name })
}

func (s *Set) configMap(namespace, name string) int {
	return slices.IndexFunc(s.ConfigMaps, func(o ConfigMap) bool { return o.Namespace == namespace && o.Name == name })
}
