package keeper

import "syscall"

// setDeathSignal has the kernel send sig to the server when the keeper dies.
func setDeathSignal(attr *syscall.SysProcAttr, sig syscall.Signal) { attr.Pdeathsig = sig }

// selfPath is the running executable, also after its file was removed.
func selfPath() (string, error) { return "/proc/self/exe", nil }
