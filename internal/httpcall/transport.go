package httpcall

import (
	"math"
	"net"
	"net/http"
	"time"
)

// Settings of the HTTP client (section 6).
const (
	// idleTimeout is below the 30 s after which Gym servers drop an idle
	// connection: the side that sends must be the one that gives up first.
	idleTimeout = 15 * time.Second

	// An agent's turn may be silent for hours; keep-alive probes tell a server
	// that thinks from one that is gone.
	keepAliveIdle     = 60 * time.Second
	keepAliveInterval = 10 * time.Second
	keepAliveProbes   = 3
)

// NewTransport makes the connection pool for the servers of one driver. It has
// no limit of its own on connections or time, takes no proxy from the
// environment and asks for no compression.
func NewTransport() *http.Transport {
	dialer := &net.Dialer{KeepAliveConfig: net.KeepAliveConfig{
		Enable:   true,
		Idle:     keepAliveIdle,
		Interval: keepAliveInterval,
		Count:    keepAliveProbes,
	}}
	return &http.Transport{
		DialContext:        dialer.DialContext,
		DisableCompression: true,
		// Every connection in use may become idle at once. A lower bound would
		// close the others and open them again for the next call.
		MaxIdleConnsPerHost: math.MaxInt,
		IdleConnTimeout:     idleTimeout,
	}
}
