//go:build !linux

package keeper

import (
	"os"
	"syscall"
)

// deathSignal does nothing here: a server whose keeper was killed has to be ended by hand.
func deathSignal(syscall.Signal) *syscall.SysProcAttr { return nil }

// selfPath is the running executable.
func selfPath() (string, error) { return os.Executable() }
