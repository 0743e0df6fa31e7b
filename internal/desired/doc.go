// Package desired turns a resource into what it takes to run it: a worker's configuration, the Secrets and ConfigMaps
// that must be mounted for it, and the objects of a cluster that hold all this.
//
// Everything here is a pure function of its arguments, the same for a cluster and for `postrider up`. Defaults that
// depend on other fields are computed here and never written back to the resource:
//
//   - source.nats.durable and source.kafka.group are consumerName with _ for each /, which no two consumerNames share;
//   - ordering.versions counts as Unchecked where ordering.mode is None;
//   - replicas is DefaultReplicas where unset;
//   - workload.resources: a relay's memory limit is enough for a full batch of every shard, a consumer's for large
//     messages in every lane; a request or limit that is set moves the other where they would contradict each other;
//   - workload.affinity: Pods of one resource avoid sharing a node where they can.
//
// Pods meet the Pod Security level "restricted" and more: no writable file system, no token, no environment and no
// command line with anything of a user in it. A change of the configuration alone does not touch the Pod template: it
// reaches the workers by the mounted file.
package desired
