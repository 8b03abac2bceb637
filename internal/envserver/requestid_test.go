package envserver_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"example.com/turn/internal/scripted"
)

// A request is called in the reply and in the log as its caller calls it. Where that is
// nothing that can be shown, it gets a name of its own.
func TestARequestHasAName(t *testing.T) {
	h := newHouse(t, nil)
	names := map[string]bool{}
	for _, test := range []struct {
		name   string
		header []string
		kept   bool
	}{
		{"its caller's", []string{"req-7/a:b"}, true},
		{"the longest", []string{strings.Repeat("x", 128)}, true},
		{"none", nil, false},
		{"an empty one", []string{""}, false},
		{"too long", []string{strings.Repeat("x", 129)}, false},
		{"of two words", []string{"a b"}, false},
		{"of other letters", []string{"ä"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			h.Play(scripted.Script{scripted.Verify: {{Status: http.StatusConflict}}})
			before := len(h.log.String())
			r, err := http.NewRequestWithContext(within(t), http.MethodPost, h.url+"/run", strings.NewReader(plain))
			if err != nil {
				t.Fatal(err)
			}
			r.Header["Content-Type"], r.Header["X-Request-Id"] = []string{"application/json"}, test.header
			response, err := h.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, response.Body)
			_ = response.Body.Close()
			name := response.Header.Get("X-Request-Id")
			if test.kept && name != test.header[0] {
				t.Errorf("it is called %q", name)
			}
			if !test.kept && (len(name) < 20 || names[name]) {
				t.Errorf("it is called %q, which is no name of its own", name)
			}
			names[name] = true
			if got := loggedFailure(t, h.log.String()[before:])["request_id"]; got != name {
				t.Errorf("the log calls it %q, the reply %q", got, name)
			}
		})
	}
}

// loggedFailure is the log's only line on an episode that failed.
func loggedFailure(t *testing.T, log string) (fields map[string]any) {
	t.Helper()
	for line := range strings.Lines(log) {
		if !strings.Contains(line, `"message":"an episode failed"`) {
			continue
		}
		if fields != nil {
			t.Errorf("more than one line: %s", log)
		}
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
	}
	return fields
}
