package keeper

import (
	"fmt"
	"io"
	"os"
	"runtime"
)

// roleVariable names the role of a child; it is set by this package alone.
const roleVariable = "POSTRIDER_LOCAL_CHILD"

// Self as a Spec's Command means the executable the keeper runs.
const Self = "self"

// The roles the own executable can be started in.
const (
	roleKeeper  = "keeper"  // keeps a server
	rolePrepare = "prepare" // fetches and unpacks PostgreSQL and makes a fresh data folder
	roleNATS    = "nats"    // is a NATS server
)

// init takes over when the process was started as a child. It is an init, and not a call in main, because the own
// executable may be any of our commands or any test binary, and a forgotten call would run a second main or all tests
// again instead of a server.
func init() { //nolint:gochecknoinits // see above
	role, ok := os.LookupEnv(roleVariable)
	if !ok {
		return
	}
	runtime.LockOSThread() // see keep
	if err := os.Unsetenv(roleVariable); err != nil {
		os.Exit(fail(os.Stderr, err))
	}
	os.Exit(runRole(role))
}

func runRole(role string) int {
	var err error
	switch role {
	case roleKeeper:
		err = keep(os.Stdin, os.Stdout)
	case rolePrepare:
		err = prepare(os.Stdin)
	case roleNATS:
		err = serveNATS(os.Args[1:])
	default:
		err = fmt.Errorf("%s=%q is not a role", roleVariable, role)
	}
	if err != nil {
		return fail(os.Stderr, err)
	}
	return 0
}

func fail(w io.Writer, err error) int {
	_, _ = fmt.Fprintln(w, err)
	return 1
}
