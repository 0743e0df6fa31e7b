package cluster

import "syscall"

// endWithParent ends a child with this process, also by kill -9.
func endWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
