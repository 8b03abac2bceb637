package envserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"

	"example.com/turn/protocol"
)

// openPaths are for load balancers and probes, which have no token.
var openPaths = map[string]bool{"/": true, "/health": true, "/healthz": true, "/livez": true, "/readyz": true}

// forCallersWith lets only those in who show the token, whatever they ask for, save at
// the open paths. "": everybody.
func forCallersWith(token protocol.Token, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !openPaths[r.URL.Path] && !shows(r.Header["Authorization"], want) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeDetail(w, http.StatusUnauthorized, "this server wants its token (Authorization: Bearer TOKEN)")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// shows reports whether a request's Authorization headers are one with that token.
// Digests are compared, so that how long it takes says nothing of the token, not even
// how long that is.
func shows(headers []string, want [sha256.Size]byte) bool {
	if len(headers) != 1 {
		return false
	}
	scheme, credentials, _ := strings.Cut(headers[0], " ")
	got := sha256.Sum256([]byte(strings.TrimSpace(credentials)))
	return subtle.ConstantTimeCompare(got[:], want[:]) == 1 && strings.EqualFold(scheme, "Bearer")
}
