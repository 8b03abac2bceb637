package testcerts

import (
	"crypto/tls"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"
)

// Guard puts a door before a server: TLS, with a certificate of the authority, and a
// token. Who does not show that is told what it should have been. It returns the door's
// address; the door closes when the test ends.
func (a *Authority) Guard(t testing.TB, behind, token string) (address string) {
	t.Helper()
	to, err := url.Parse(behind)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	proxy.Transport = &http.Transport{DisableKeepAlives: true}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, `{"detail":"want Bearer `+token+`"}`, http.StatusUnauthorized)
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	server.Config.ErrorLog = proxy.ErrorLog // of handshakes that fail on purpose
	server.TLS = &tls.Config{Certificates: []tls.Certificate{a.Certificate(t, "127.0.0.1", time.Now().Add(time.Hour)).Certificate}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}
