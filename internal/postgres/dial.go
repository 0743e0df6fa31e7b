package postgres

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// How soon a half-open connection is noticed while it is idle; while data is on its way, userTimeout decides.
const (
	keepAliveIdle     = 15 * time.Second
	keepAliveInterval = 5 * time.Second
	keepAliveCount    = 3
	userTimeout       = 20 * time.Second
)

// newDialer returns a dialer that looks at each address after resolution, so that a name cannot be
// made to point at the node's metadata service or at the pod itself, now or later.
func newDialer(allowLoopback bool, timeout time.Duration) *net.Dialer {
	return &net.Dialer{
		Timeout: timeout,
		KeepAliveConfig: net.KeepAliveConfig{
			Enable: true, Idle: keepAliveIdle, Interval: keepAliveInterval, Count: keepAliveCount,
		},
		Control: func(_, address string, c syscall.RawConn) error {
			if err := checkAddress(address, allowLoopback); err != nil {
				return err
			}
			return setUserTimeout(c, userTimeout)
		},
	}
}

// checkAddress refuses addresses at which no tenant's database can be.
func checkAddress(address string, allowLoopback bool) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return addressError(address, "is not an IP address and port")
	}
	ip := ap.Addr().Unmap()
	switch {
	case ip.IsLoopback() && !allowLoopback:
		return addressError(address, "is a loopback address")
	case ip.IsLinkLocalUnicast():
		return addressError(address, "is a link-local address")
	case ip.IsMulticast() || ip.IsUnspecified() || isMetadata(ip):
		return addressError(address, "is not the address of a database")
	default:
		return nil
	}
}

// isMetadata knows the metadata services of clouds that are not link-local.
func isMetadata(ip netip.Addr) bool {
	switch ip.WithZone("").String() {
	case "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192":
		return true
	default:
		return false
	}
}

func addressError(address, what string) error {
	return &Error{Reason: ReasonAddressRefused, Message: fmt.Sprintf("address %s %s and is not dialled", address, what)}
}
