package httpcall_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	stdlog "log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"example.com/turn/failures"
	"example.com/turn/internal/httpcall"
	"example.com/turn/internal/pool"
	"example.com/turn/internal/testcerts"
	"example.com/turn/retry"
)

// serveTLS starts a server with that certificate and returns its address.
func serveTLS(t *testing.T, certificate tls.Certificate) (address string) {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "{}")
	}))
	server.Config.ErrorLog = stdlog.New(io.Discard, "", 0) // handshakes fail on purpose
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// trusting makes a client of an address that trusts those roots.
func trusting(t *testing.T, roots *x509.CertPool, url string) *httpcall.Client {
	t.Helper()
	transport := pool.Trusting(roots)
	t.Cleanup(transport.CloseIdleConnections)
	return newClient(t, httpcall.Config{URL: url, Transport: transport, Token: token})
}

func TestAServerWithACertificateOfOurAuthorityIsCalled(t *testing.T) {
	authority := testcerts.NewAuthority(t)
	address := serveTLS(t, authority.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour)).Certificate)
	body, err := trusting(t, authority.Roots(), "https://"+address).Post(within(t), verifyCall(retry.Once))
	if err != nil || string(body) != "{}" {
		t.Errorf("got %q, %v", body, err)
	}
}

// A server that is not who it should be is one that cannot be reached: nothing is sent
// to it, and the reason says what is wrong.
func TestWhyACertificateIsRefused(t *testing.T) {
	authority := testcerts.NewAuthority(t)
	hour := time.Now().Add(time.Hour)
	good := serveTLS(t, authority.Certificate(t, "127.0.0.1", hour).Certificate)
	expired := serveTLS(t, authority.Certificate(t, "127.0.0.1", time.Now().Add(-time.Hour)).Certificate)
	another := serveTLS(t, authority.Certificate(t, "other.example", hour).Certificate)
	plain := strings.TrimPrefix(serveRaw(t, nil).URL, "http://")
	http := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(http.Close)
	for _, test := range []struct {
		name  string
		roots *x509.CertPool
		url   string
		words string
	}{
		{"an unknown authority", nil, good, "its certificate is signed by an unknown authority (--ca-file FILE has it known)"},
		{"another authority", testcerts.NewAuthority(t).Roots(), good, "its certificate is signed by an unknown authority (--ca-file FILE has it known)"},
		{"expired", authority.Roots(), expired, "its certificate is refused: certificate has expired or is not yet valid: it is valid from "},
		{"another name", authority.Roots(), another, "its certificate is refused: cannot validate certificate for 127.0.0.1 because it doesn't contain any IP SANs"},
		{"plain http", nil, http.Listener.Addr().String(), "it does not speak TLS, and its URL begins with https"},
		{"nothing that could be read", nil, plain, "the connection ended before the reply"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := trusting(t, test.roots, "https://"+test.url).Post(within(t), verifyCall(retry.Once))
			got := wantFailure(t, err)
			want := "resources server weather did not answer POST /verify: " + test.words
			if got.Kind != failures.TransportUnreachable || got.Terminal || !got.Unsent || !strings.HasPrefix(got.Reason, want) {
				t.Errorf("kind %q, terminal %v, unsent %v: %s\nwant %s", got.Kind, got.Terminal, got.Unsent, got.Reason, want)
			}
		})
	}
}
