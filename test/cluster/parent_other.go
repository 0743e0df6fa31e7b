//go:build !linux

package cluster

import "syscall"

// endWithParent cannot be had here: Stop ends the child.
func endWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
