package pool

import (
	"crypto/tls"
	"crypto/x509"
	"math"
	"net/http"
)

// General is a pool on net/http's own transport, for replies that are streams: what
// calls models and tools is of other projects. It trusts whom [Trusting] does.
func General(roots *x509.CertPool) *http.Transport {
	transport := &http.Transport{
		TLSClientConfig:    &tls.Config{RootCAs: roots},
		DisableCompression: true,
		// Every connection in use may become idle at once. A lower bound would
		// close the others and open them again for the next call.
		MaxIdleConnsPerHost: math.MaxInt,
		IdleConnTimeout:     idleTimeout,
	}
	transport.DialContext = dialer(transport.CloseIdleConnections)
	return transport
}
