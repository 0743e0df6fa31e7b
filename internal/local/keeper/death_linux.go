package keeper

import "syscall"

// deathSignal has the kernel send sig to the server when the keeper dies.
func deathSignal(sig syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: sig}
}

// selfPath is the running executable, also after its file was removed.
func selfPath() (string, error) { return "/proc/self/exe", nil }
