package resourcesserver_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"

	"example.com/turn/servers/resourcesserver"
)

func TestAggregateMetrics(t *testing.T) {
	metrics := func(values string) string {
		return fmt.Sprintf(`{"group_level_metrics":[],"agent_metrics":%s,"key_metrics":%[1]s,"repeat_level_metrics":[]}`, values)
	}
	for _, test := range []struct {
		name, body string
		status     int
		want       string
	}{
		{"the mean", `{"verify_responses":[{"reward":1},{"reward":0.5,"mask_sample":false},{"reward":0,"mask_sample":null}]}`, 200, metrics(`{"mean/reward":0.5}`)},
		{"rewards whose sum is no number", `{"verify_responses":[{"reward":1.5e308},{"reward":1.5e308}]}`, 200, metrics(`{"mean/reward":1.5e+308}`)},
		{"without the masked", `{"other":[{}],"verify_responses":[{"reward":1},{"reward":0,"mask_sample":true}]}`, 200, metrics(`{"mean/reward":1}`)},
		{"beside others, whatever they are", `{"a":[{"b":[[],{}]},1e999,"]}",null],"verify_responses":[{"reward":1}],"c":-0.0,"d":"{"}`, 200, metrics(`{"mean/reward":1}`)},
		{"another that is no JSON", `{"a":[1,}],"verify_responses":[]}`, 422, `{"detail":[{"type":"json_invalid","loc":["body",8],"msg":"JSON decode error: invalid character '}' looking for beginning of value"}]}`},
		{"another that is cut off", `{"a":[[`, 422, `{"detail":[{"type":"json_invalid","loc":["body",7],"msg":"JSON decode error: unexpected EOF"}]}`},
		{"another as deep as may be", `{"a":` + strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999) + `,"verify_responses":[]}`, 200, metrics(`{}`)},
		{"another deeper than that", `{"a":` + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + `,"verify_responses":[]}`, 422, `{"detail":[{"type":"json_invalid","loc":["body",10005],"msg":"JSON decode error: nesting deeper than 10000"}]}`},
		{"all masked: no mean", `{"verify_responses":[{"reward":0,"mask_sample":true}]}`, 200, metrics(`{}`)},
		{"none: no mean", `{"verify_responses":[]}`, 200, metrics(`{}`)},
		{"missing", `{}`, 422, `{"detail":[{"type":"missing","loc":["body","verify_responses"],"msg":"Field required"}]}`},
		{"no list", `{"verify_responses":{}}`, 422, `{"detail":[{"type":"list_type","loc":["body","verify_responses"],"msg":"Input should be a valid list"}]}`},
		{"no object", `[]`, 422, `{"detail":[{"type":"dict_type","loc":["body"],"msg":"Input should be a valid dictionary"}]}`},
		{"no reward", `{"verify_responses":[{"reward":1},{}]}`, 422, `{"detail":[{"type":"missing","loc":["body","verify_responses",1,"reward"],"msg":"Field required"}]}`},
		{"cut off", `{"verify_responses":[{"reward":1}`, 422, `{"detail":[{"type":"json_invalid","loc":["body",33],"msg":"JSON decode error: unexpected EOF"}]}`},
		{"more than an object", `{"verify_responses":[]}}`, 422, `{"detail":[{"type":"json_invalid","loc":["body",23],"msg":"JSON decode error: text after the object"}]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, resourcesserver.Config{MaxRequestBytes: 1})
			b.want("the metrics", b.post("/aggregate_metrics", "", test.body), test.status, test.want)
		})
	}
}

// Members that nobody asked for are read over, however long they are: what is live
// while they are read does not grow with them.
func TestAggregateMetricsKeepsNothingOfOtherMembers(t *testing.T) {
	server, err := resourcesserver.New((&book{}).environment(), resourcesserver.Config{})
	if err != nil {
		t.Fatal(err)
	}
	const length = 8 << 20
	body := &watched{text: io.MultiReader(
		strings.NewReader(`{"notes":["`),
		&repeated{text: strings.Repeat("all work and no play ", 200) + `","`, left: length},
		strings.NewReader(`"],"verify_responses":[{"reward":0.5}]}`),
	)}
	before := live()
	request := httptest.NewRequest(http.MethodPost, "/aggregate_metrics", body)
	request.Header.Set("Content-Type", "application/json")
	recorder := httptest.NewRecorder()
	server.ServeHTTP(recorder, request)
	if recorder.Code != http.StatusOK || !strings.Contains(recorder.Body.String(), `"mean/reward":0.5`) {
		t.Fatalf("status %d: %s", recorder.Code, recorder.Body)
	}
	if body.most > before+length/4 {
		t.Errorf("%d MB are kept of a member of %d MB", (body.most-before)>>20, length>>20)
	}
}

// repeated is a text over and over.
type repeated struct {
	text string
	at   int
	left int // bytes to come, at least
}

func (r *repeated) Read(p []byte) (int, error) {
	if r.left <= 0 && r.at == 0 {
		return 0, io.EOF
	}
	n := copy(p, r.text[r.at:])
	r.at = (r.at + n) % len(r.text)
	r.left -= n
	return n, nil
}

// watched notes how much memory is live while its text is read.
type watched struct {
	text   io.Reader
	read   int
	looked int // how much had been read at the last look
	most   uint64
}

func (w *watched) Read(p []byte) (int, error) {
	if w.read-w.looked >= 1<<20 {
		w.looked, w.most = w.read, max(w.most, live())
	}
	n, err := w.text.Read(p)
	w.read += n
	return n, err
}

// live is how many bytes of memory something refers to.
func live() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
