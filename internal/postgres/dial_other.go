//go:build !linux

package postgres

import (
	"syscall"
	"time"
)

// setUserTimeout does nothing: only Linux has the option. Deadlines of the callers bound each statement.
func setUserTimeout(syscall.RawConn, time.Duration) error { return nil }
