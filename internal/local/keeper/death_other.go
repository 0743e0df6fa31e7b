//go:build !linux

package keeper

import (
	"os"
	"syscall"
)

// setDeathSignal does nothing here: a server whose keeper was killed has to be ended by hand.
func setDeathSignal(*syscall.SysProcAttr, syscall.Signal) {}

// killChildren leaves the children to notice by themselves that the server is gone.
func killChildren(int) {}

// selfPath is the running executable.
func selfPath() (string, error) { return os.Executable() }
