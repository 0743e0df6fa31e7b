package postgres

import (
	"fmt"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// setUserTimeout bounds how long sent data may stay unacknowledged before the kernel gives the connection up.
func setUserTimeout(c syscall.RawConn, d time.Duration) error {
	var setErr error
	err := c.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
	if err == nil {
		err = setErr
	}
	if err != nil {
		return fmt.Errorf("set the TCP user timeout: %w", err)
	}
	return nil
}
