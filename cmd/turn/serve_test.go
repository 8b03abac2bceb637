package main

import (
	"net"
	"testing"
)

// Which of these a listener has depends on the machine: where there is IPv6, one on
// every interface says so in IPv6.
func TestDialable(t *testing.T) {
	for _, test := range []struct {
		address net.Addr
		want    string
	}{
		{&net.TCPAddr{IP: net.IPv4zero, Port: 8002}, "127.0.0.1:8002"},
		{&net.TCPAddr{IP: net.IPv6unspecified, Port: 8002}, "[::1]:8002"},
		{&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 8002}, "192.0.2.7:8002"},
		{&net.TCPAddr{IP: net.ParseIP("2001:db8::7"), Port: 8002}, "[2001:db8::7]:8002"},
		{&net.UnixAddr{Name: "/run/turn", Net: "unix"}, "/run/turn"},
	} {
		if got := dialable(test.address); got != test.want {
			t.Errorf("%v is dialled as %s, want %s", test.address, got, test.want)
		}
	}
}
