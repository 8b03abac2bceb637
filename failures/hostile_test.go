package failures_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"example.com/turn/failures"
)

// eventually is far more than anything here takes, and far less than it would take if
// its time grew with the square of what a server sends.
const eventually = time.Minute

// A reason takes no time that grows with the length of a refusal times that of the
// secrets that its server has handed out.
func TestHostileSecretsAreMaskedInTime(t *testing.T) {
	const length = 1 << 18
	for name, secrets := range map[string][]string{
		"one that nearly is there everywhere":      {strings.Repeat("a", length) + "b"},
		"one that is found from its end":           {"b" + strings.Repeat("a", length)},
		"two":                                      {strings.Repeat("a", length) + "b", "another secret"},
		"many, each the beginning of the next one": beginnings(1000),
	} {
		t.Run(name, func(t *testing.T) {
			call := failures.Call{Server: "server", What: "POST /x", Secrets: &failures.Secrets{}}
			for _, secret := range secrets {
				call.Secrets.Add(secret)
			}
			body := []byte(strings.Repeat("a", 8*length))
			ended := make(chan *failures.Failure)
			go func() { ended <- failures.Refused(call, 500, http.Header{}, body, time.Now()) }()
			select {
			case f := <-ended:
				if n := utf8.RuneCountInString(f.Reason); n > failures.MaxReason || !strings.HasPrefix(f.Reason, "server refused POST /x with 500") {
					t.Errorf("a reason of %d characters: %.100s", n, f.Reason)
				}
			case <-time.After(eventually):
				t.Fatal("it takes too long")
			}
		})
	}
}

func beginnings(n int) []string {
	var secrets []string
	for i := range n {
		secrets = append(secrets, strings.Repeat("a", 6+i)+"b")
	}
	return secrets
}

// A text that is nearly all secrets shows none of them, nor a part of one, wherever it
// was cut.
func TestNoPartOfASecretIsLeftWhereATextIsCut(t *testing.T) {
	long := "s3cr3t-" + strings.Repeat("0123456789", 10_000)
	for shift := range 40 {
		secret := long[:57]
		if shift%4 == 0 {
			secret = long // more than is looked through
		}
		call := failures.Call{Server: "server", What: "POST /x" + strings.Repeat("!", shift), Secrets: &failures.Secrets{}}
		call.Secrets.Add(secret)
		f := failures.Refused(call, 500, http.Header{}, []byte(strings.Repeat(secret, 60_000/len(secret)+2)), time.Now())
		if strings.Contains(f.Reason, "s3") || strings.Contains(f.Reason, "0123") || !strings.HasSuffix(f.Reason, "…") {
			t.Errorf("%d: %s", shift, f.Reason)
		}
	}
}

// Of a list of faults that has no end the first are read, and of a page its beginning.
func TestOfALongRefusalTheBeginningIsRead(t *testing.T) {
	var list strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&list, `,{"loc":["body",%d],"msg":"no"}`, i)
	}
	for _, test := range []struct{ name, body, begins string }{
		{"faults", `{"detail":[` + list.String()[1:] + `]}`, "body.0: no; body.1: no; "},
		{"a path", `{"detail":[{"loc":[1` + strings.Repeat(",2", 200_000) + `],"msg":"no"}]}`, "1.2.2.2"},
		{"a page", "<p>no " + strings.Repeat("a ", 200_000) + "</p>", "no a a a"},
		{"a page of tags", strings.Repeat("<b>", 100_000) + "no " + strings.Repeat("<i>a</i>", 200_000), "no a a a"},
		{"a page of titles", "<head>" + strings.Repeat("<title>no</title>", 20_000), "no"},
	} {
		if got := failures.ReadRefusal(500, "", []byte(test.body)); !strings.HasPrefix(got.Words, test.begins) || len(got.Words) > 200_000 {
			t.Errorf("%s: %d bytes: %.100s", test.name, len(got.Words), got.Words)
		}
	}
}
