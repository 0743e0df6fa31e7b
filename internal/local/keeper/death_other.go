//go:build !linux

package keeper

import (
	"os"
	"syscall"
)

// setDeathSignal does nothing here: a server whose keeper was killed has to be ended by hand.
func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// selfPath is the running executable.
func selfPath() (string, error) { return os.Executable() }
