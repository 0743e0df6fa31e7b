package broker

import "net/netip"

// BlockedAddress says whether a worker must never dial the address, whatever a name resolved to: link-local ones
// (among them the metadata service 169.254.169.254), metadata services elsewhere, multicast and the unspecified.
// Loopback is allowed: brokers run beside workers on laptops and as sidecars.
func BlockedAddress(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	if !addr.IsValid() || addr.IsUnspecified() || addr.IsMulticast() || addr.IsLinkLocalUnicast() {
		return true
	}
	switch addr.String() { // metadata services that are not link-local
	case "fd00:ec2::254", // AWS over IPv6
		"100.100.100.200", // Alibaba
		"168.63.129.16",   // Azure
		"192.0.0.192":     // Oracle
		return true
	default:
		return false
	}
}
