package postgres

import (
	"errors"
	"testing"
)

func TestCheckAddress(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		address       string
		allowLoopback bool
		refused       bool
	}{
		"a cluster address is dialled":           {address: "10.1.2.3:5432"},
		"a public address is dialled":            {address: "203.0.113.7:5432"},
		"a unique local IPv6 address is dialled": {address: "[fd12:3456::7]:5432"},
		"the metadata service is refused": {
			address:       "169.254.169.254:80",
			allowLoopback: true,
			refused:       true,
		},
		"the metadata service in IPv6 clothes is refused": {
			address:       "[::ffff:169.254.169.254]:80",
			allowLoopback: true,
			refused:       true,
		},
		"a link-local IPv6 address is refused": {
			address:       "[fe80::1%eth0]:5432",
			allowLoopback: true,
			refused:       true,
		},
		"the metadata service on IPv6 is refused": {
			address:       "[fd00:ec2::254]:80",
			allowLoopback: true,
			refused:       true,
		},
		"another cloud's metadata service is refused": {
			address:       "100.100.100.200:80",
			allowLoopback: true,
			refused:       true,
		},
		"loopback is refused in a pod":            {address: "127.0.0.1:5432", refused: true},
		"all of 127/8 is loopback":                {address: "127.8.9.1:5432", refused: true},
		"IPv6 loopback is refused in a pod":       {address: "[::1]:5432", refused: true},
		"mapped loopback is refused in a pod":     {address: "[::ffff:127.0.0.1]:5432", refused: true},
		"loopback is dialled where it is allowed": {address: "127.0.0.1:5432", allowLoopback: true},
		"the unspecified address, which is us, is refused": {
			address:       "0.0.0.0:5432",
			allowLoopback: true,
			refused:       true,
		},
		"a multicast address is refused": {
			address:       "224.0.0.1:5432",
			allowLoopback: true,
			refused:       true,
		},
		"what is not an address after resolution is refused": {
			address:       "orders-db:5432",
			allowLoopback: true,
			refused:       true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := checkAddress(tc.address, tc.allowLoopback)
			if (err != nil) != tc.refused {
				t.Fatalf("checkAddress(%s) = %v, want refused %t", tc.address, err, tc.refused)
			}
			var known *Error
			if tc.refused && (!errors.As(err, &known) || known.Reason != ReasonAddressRefused) {
				t.Errorf("error is %v, want reason %s", err, ReasonAddressRefused)
			}
		})
	}
}
