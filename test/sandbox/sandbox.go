// Package sandbox runs a program a second time in namespaces of its own: processes, mounts, network and IPC. Whatever
// the program starts and mounts in there ends with it, by the kernel, however it ends, also by kill -9 of the program
// outside. Only control groups and one folder are left then; Run removes them, and those of runs that were killed.
//
// Nothing in the box can reach, or be reached from, the network outside: fetch and build before.
//
// It needs root and Linux. In a container it needs a privileged one.
package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	// Address is the one address of the box, apart from loopback.
	Address = "10.200.0.1"
	// prefix begins the names of folders and control groups.
	prefix = "postrider-sandbox-"

	roleVariable = "POSTRIDER_SANDBOX"
	dirVariable  = "POSTRIDER_SANDBOX_DIR"
	roleFirst    = "first"  // process 1 of the box
	roleInside   = "inside" // the program
)

// ErrForbidden says that this machine, or the container we are in, does not let us make namespaces, mounts or control
// groups.
var ErrForbidden = errors.New("namespaces, mounts and control groups of one's own need root, " +
	"and in a container a privileged one")

// Box is what the program finds inside.
type Box struct {
	// Dir is a folder for everything. It is removed at the end. os.TempDir is below it.
	Dir string
	// Cgroup is the name of a control group, in every hierarchy, for everything that is not to be left behind.
	Cgroup string
}

// Inside returns the box if this program runs in one.
func Inside() (*Box, bool) {
	if os.Getenv(roleVariable) != roleInside {
		return nil, false
	}
	return boxIn(os.Getenv(dirVariable)), true
}

// Outside returns the environment without what says that a program runs in a box, for one that is to know nothing of it.
func Outside(environment []string) []string {
	return slices.DeleteFunc(slices.Clone(environment), func(set string) bool {
		return strings.HasPrefix(set, roleVariable+"=") || strings.HasPrefix(set, dirVariable+"=")
	})
}

func boxIn(dir string) *Box { return &Box{Dir: dir, Cgroup: filepath.Base(dir)} }
