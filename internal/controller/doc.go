// Package controller is the operator: it turns each resource into the objects that run it, and what their workers
// report into the resource's status.
//
// A pass has four steps: observe reads, internal/desired decides, apply writes the objects and report the status. It
// promises that objects which are not ours are never touched, that a resource which did not change writes nothing, and
// that a status says Unknown where nobody knows. It reads no Secret, dials no database and no broker: it asks only its
// own Pods. Nothing waits for it; workers go on when it is gone.
package controller
