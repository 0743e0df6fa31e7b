//go:build kubernetes

package envtest

import (
	"os/exec"
	"syscall"
)

// dieWithParent leaves no process behind when the test binary itself is killed.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
