package collect_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/episode"
	"example.com/turn/failures"
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

// A bug that one task brings to light is that task's failure, for good, and no more.
func TestAPanicIsItsEpisodesFailure(t *testing.T) {
	s := atOnce(func(r *episode.Request) (*episode.Result, *failures.Failure) {
		if is(r, "1-0") {
			panic("no such key")
		}
		return nil, nil
	})
	b := onStage(t, flat(4), s)
	summary := b.run(t)
	if summary.Done != 3 || summary.FailedForGood != 1 {
		t.Errorf("summary %+v, want 3 done and 1 failed for good", summary)
	}
	if diff := cmp.Diff([]string{"0-0", "1-0", "2-0", "3-0"}, s.played()); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	if got := b.failures(t); len(got) != 1 || got[0].TaskIndex != 1 || !got[0].Terminal || got[0].Reason != "Unhandled error of this run: no such key" {
		t.Errorf("failures %+v, want one of task 1, which is terminal and says what it was", got)
	}
}
