package failures_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"example.com/turn/failures"
)

// errorPage is what nginx says when its server is not there.
const errorPage = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n" +
	"<hr><center>nginx/1.24.0</center>\r\n</body>\r\n</html>\r\n"

var refusals = []struct {
	name        string
	status      int
	contentType string
	body        string
	says        string // with "%s" where a secret is
}{
	{"detail", 500, "application/json", `{"detail":"Verifier of session %s is not running"}`, "Verifier of session %s is not running"},
	{
		"faults", 422, "application/json", `{"detail":[{"type":"missing","loc":["body","responses_create_params","input"],"msg":"Field required","input":{"session":"%s"}},` +
			`{"type":"int_parsing","loc":["body","items",0,"count"],"msg":"Input should be a valid integer, unable to parse string as an integer","input":"many"},` +
			`{"type":"string_type","loc":["body","task_id"],"msg":"Input should be a valid string","input":7}]}`,
		"body.responses_create_params.input: Field required; body.items.0.count: Input should be a valid integer, unable to parse string as an integer; body.task_id: Input should be a valid string",
	},
	{"page", 502, "text/html", errorPage, "502 Bad Gateway: 502 Bad Gateway nginx/1.24.0"},
	{"words behind an echo of 1 MB", 400, "application/json", `{"input":"` + strings.Repeat(`It is 12 °C in Tromsø, \"clear sky\".\n`, (1<<20)/41) + `","detail":"Session %s is unknown"}`, "Session %s is unknown"},
	{"text of 64 KB", 500, "text/plain", strings.Repeat("  File server.py, line 7, in verify\n", (64<<10)/36), "File server.py, line 7, in verify"},
}

// secretValue is what a session's cookie has for a value.
func secretValue(i int) string {
	return fmt.Sprintf("eyJzZXNzaW9uX2lkIjogIjZiNzc3YjRkLTQ1YzEtNDRmZS1iM2Y1LTk0YzY0YzE0ZTIzZiJ9.aomaMA.%027d", i)
}

func secretsOf(n int) *failures.Secrets {
	secrets := &failures.Secrets{}
	for i := range n {
		secrets.Add(secretValue(i))
	}
	return secrets
}

func BenchmarkRefused(b *testing.B) {
	for _, refusal := range refusals {
		body := []byte(strings.ReplaceAll(refusal.body, "%s", secretValue(1)))
		header := http.Header{"Content-Type": {refusal.contentType}}
		for _, n := range []int{0, 2, 200} {
			b.Run(fmt.Sprintf("%s/%d secrets", refusal.name, n), func(b *testing.B) {
				call := failures.Call{Stage: failures.StageVerification, Server: "resources server weather", What: "POST /verify", Secrets: secretsOf(n)}
				says := strings.ReplaceAll(refusal.says, "%s", "***")
				if n == 0 {
					says = strings.ReplaceAll(refusal.says, "%s", secretValue(1))
				}
				if got := failures.Refused(call, refusal.status, header, body, now); !strings.Contains(got.Reason, says) || got.Status != refusal.status {
					b.Fatalf("status %d, %q, want %q in it", got.Status, got.Reason, says)
				}
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					failures.Refused(call, refusal.status, header, body, now)
				}
			})
		}
	}
}

// BenchmarkAddSecret adds what is there already.
func BenchmarkAddSecret(b *testing.B) {
	secrets := secretsOf(2)
	if !secrets.In(secretValue(1)) || secrets.In(secretValue(2)) {
		b.Fatal("the secrets are others")
	}
	value := secretValue(1)
	b.ReportAllocs()
	for b.Loop() {
		secrets.Add(value)
	}
}
