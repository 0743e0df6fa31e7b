// Package desired turns a resource into what it takes to run it: a worker's configuration and the Secrets and
// ConfigMaps that must be mounted for it.
//
// Everything here is a pure function of its arguments, the same for a cluster and for `postrider up`. Defaults that
// depend on other fields are computed here and never written back to the resource:
//
//   - source.nats.durable is consumerName with _ for each /, which no two consumerNames share;
//   - ordering.versions counts as Unchecked where ordering.mode is None;
//   - replicas is DefaultReplicas where unset.
package desired
