package collect_test

import (
	"io"
	"net/http"
	"strings"

	"example.com/turn/internal/scripted"
)

// poisoned is a resources server that refuses some tasks and serves the others.
type poisoned struct{ is func(scripted.Call) bool }

func (p poisoned) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	id := strings.SplitN(string(body), `"`, 5)
	switch {
	case strings.HasSuffix(r.URL.Path, "/seed_session") && p.is(scripted.Call{Body: body}):
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, `{"detail":"poison"}`)
	case strings.HasSuffix(r.URL.Path, "/seed_session"):
		w.Header().Set("Set-Cookie", "s=1")
		_, _ = io.WriteString(w, `{"resources_session_id":"`+id[3]+`"}`)
	case strings.HasSuffix(r.URL.Path, "/verify"):
		_, _ = io.WriteString(w, `{"responses_create_params":{},"response":{},"reward":1}`)
	default:
		_, _ = io.WriteString(w, `{}`)
	}
}
