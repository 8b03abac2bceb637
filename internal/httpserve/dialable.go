package httpserve

import (
	"net"
	"net/netip"
)

// Dialable is where a client on this machine reaches who listens at an address: one that
// listens on every interface is reached on loopback. What is no host and port stays as it
// is.
func Dialable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	ip, err := netip.ParseAddr(host)
	switch {
	case host == "" || err == nil && ip == netip.IPv4Unspecified():
		host = "127.0.0.1"
	case err == nil && ip == netip.IPv6Unspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}
