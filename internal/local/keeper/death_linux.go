package keeper

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
)

// setDeathSignal has the kernel send sig to the server when the keeper dies.
func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// selfPath is the running executable, also after its file was removed.
func selfPath() (string, error) { return "/proc/self/exe", nil }

// killChildren kills the children of a process with kill -9, and halts the process itself, so that it makes no new
// ones: the caller kills it next. Without that, what a killed server was doing in its children would go on for a while.
func killChildren(pid int) {
	_ = syscall.Kill(pid, syscall.SIGSTOP) // an error here and below means that it has just ended
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return
	}
	for _, stat := range stats {
		content, err := os.ReadFile(stat) //nolint:gosec // the kernel's
		if err != nil {
			continue
		}
		// "pid (name) state parent …"; the name may hold anything.
		_, after, found := bytes.Cut(content[max(bytes.LastIndexByte(content, ')'), 0):], []byte(") "))
		var state string
		var parent int
		if !found {
			continue
		}
		if _, err := fmt.Sscan(string(after), &state, &parent); err != nil || parent != pid {
			continue
		}
		if child, err := strconv.Atoi(filepath.Base(filepath.Dir(stat))); err == nil {
			_ = syscall.Kill(child, syscall.SIGKILL)
		}
	}
}
