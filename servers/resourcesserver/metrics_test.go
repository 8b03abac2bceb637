package resourcesserver_test

import (
	"fmt"
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
