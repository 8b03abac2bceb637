package failures_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
)

func TestReadRefusalFindsTheServersWords(t *testing.T) {
	const nothing = "Service Unavailable" // the status text
	for _, test := range []struct{ name, body, want string }{
		{"failure_reason", `{"failure_reason":"a"}`, "a"},
		{"detail as text", `{"detail":" a\n"}`, "a"},
		{"detail as an object: failure_reason", `{"detail":{"failure_reason":"a"}}`, "a"},
		{"detail as an object: reason", `{"detail":{"reason":"a"}}`, "a"},
		{"detail as an object: message", `{"detail":{"message":"a"}}`, "a"},
		{"detail as an object: error", `{"detail":{"error":"a"}}`, "a"},
		{
			"detail as a list", `{"detail":[{"type":"missing","loc":["body","items",0,"x"],"msg":"Field required"},{"loc":["query"],"msg":"b"}]}`,
			"body.items.0.x: Field required; query: b",
		},
		{"detail as a list with gaps", `{"detail":[{"msg":"a"},{"loc":["body"]},{"loc":[],"msg":"b"},{},"c",5,null]}`, "a; body; b; c"},
		{"a fault far into the text", `{"detail":[{"loc":["body",1234567],"msg":"JSON decode error"}]}`, "body.1234567: JSON decode error"},
		{"error.message", `{"error":{"message":"a","code":"x"}}`, "a"},
		{"error as text", `{"error":"a"}`, "a"},
		{"message", `{"message":"a"}`, "a"},
		{"a JSON string", `"a \"b\""`, `a "b"`},
		{"a JSON string with space around its words", `" a\n"`, "a"},
		{"a fault that says only where", `{"detail":[{"loc":["body",0]}]}`, "body.0"},
		{"plain text", " upstream gone\n", "upstream gone"},
		{"text that is almost JSON", `{"detail":"a"`, `{"detail":"a"`},
		{"Python's JSON", `{"detail":"a","loss":NaN}`, `{"detail":"a","loss":NaN}`},
		{"a number beyond all floats", `{"detail":"a","x":1e400,"y":` + strings.Repeat("9", 400) + `}`, "a"},
		{"behind an echo of the request", `{"input":"` + strings.Repeat("x", 2<<20) + `","detail":"a"}`, "a"},
		{"white space around JSON", "\r\n {\"detail\":\"a\"} \n", "a"},
		{"text beyond ASCII", `{"detail":"Tromsø \ud83d\ude00 \ud800"}`, "Tromsø 😀 \ufffd"},
		{"plain bytes that are not UTF-8", "gone\xff\xfe", "gone\ufffd"},

		{"failure_reason goes first", `{"message":"f","error":{"message":"c"},"detail":"b","failure_reason":"a"}`, "a"},
		{"then detail", `{"message":"f","error":{"message":"c"},"detail":"b"}`, "b"},
		{"then error.message", `{"message":"f","error":{"message":"c"}}`, "c"},
		{"then error", `{"message":"f","error":"d"}`, "d"},
		{"within detail: failure_reason", `{"detail":{"error":"d","message":"c","reason":"b","failure_reason":"a"}}`, "a"},
		{"then reason", `{"detail":{"error":"d","message":"c","reason":"b"}}`, "b"},
		{"then message", `{"detail":{"error":"d","message":"c"}}`, "c"},
		{"what is unusable is passed over", `{"failure_reason":"  ","detail":[],"error":{"message":5},"message":"f"}`, "f"},
		{"an unusable detail", `{"detail":{"reason":null,"why":"x"},"error":"d"}`, "d"},
		{"names in another case are others", `{"Detail":"a","message":"f"}`, "f"},

		{"no body", ``, nothing},
		{"white space", " \n", nothing},
		{"null", `null`, nothing},
		{"a number", `503`, nothing},
		{"a boolean", `false`, nothing},
		{"an empty string", `""`, nothing},
		{"an empty object", `{}`, nothing},
		{"an empty array", `[]`, nothing},
		{"an array", `["a",{"detail":"b"}]`, nothing},
		{"an object without words", `{"code":5,"detail":null}`, nothing},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := failures.ReadRefusal(http.StatusServiceUnavailable, "application/json", []byte(test.body))
			if diff := cmp.Diff(failures.Refusal{Words: test.want}, got); diff != "" {
				t.Errorf("ReadRefusal of %q (-want +got):\n%s", test.body, diff)
			}
		})
	}
}

// However a page of the largest size is made, reading it takes time in proportion:
// a reader that looks for the end of each element anew would take an hour.
func TestReadRefusalReadsHostileHTML(t *testing.T) {
	for _, piece := range []string{"<head><!---->", "<title>", "<script>", "<!--", "<p>", "</", "&lt", "<a "} {
		page := "<html>" + strings.Repeat(piece, (1<<20)/len(piece))
		if got := failures.ReadRefusal(500, "text/html", []byte(page)); got.Words == "" {
			t.Errorf("no words for a page of %q", piece)
		}
	}
}

func TestReadRefusalReadsHTML(t *testing.T) {
	const nothing = "Bad Gateway"
	for _, test := range []struct{ name, contentType, body, want string }{
		{"nginx", "text/html", "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx/1.25</center>\r\n</body>\r\n</html>\r\n", "502 Bad Gateway nginx/1.25"},
		{"told by its beginning", "", "\n<!DOCTYPE HTML><p>a</p>", "a"},
		{"told by its tag", "text/plain", "<HTML lang=en><p>a</p>", "a"},
		{"told by its type", "Text/HTML; charset=utf-8", "<p>a</p>", "a"},
		{"XHTML", "application/xhtml+xml", `<?xml version="1.0" encoding="utf-8"?><html xmlns="http://www.w3.org/1999/xhtml"><body><p>a<br/>b</p></body></html>`, "a b"},
		{"plain text that is called HTML", "text/html", "3 < 5 & a > b", "3 < 5 & a > b"},
		{"entities", "text/html", "<p>&lt;model&gt;&nbsp;&amp; caf&eacute; &#39;x&#x27; &bogus;</p>", "<model> & café 'x' &bogus;"},
		{"scripts, styles and comments are not seen", "text/html", `<style>p{}</style><SCRIPT src="x">if (a < b) alert("no")</SCRIPT ><!-- <p>no</p> --><p>a</p><script>no</script>`, "a"},
		{"a script that speaks of a style", "text/html", `<p>a</p><script>x = "</style>"; y()</script><p>b</p>`, "a b"},
		{"a head with scripts and styles", "text/html", `<html><head><style>p{}</style><script>no</script><title>T</title></head><body>a</body></html>`, "a"},
		{"a script that is cut off", "text/html", `<p>a</p><script>var no = 1;`, "a"},
		{"a header is not a head", "text/html", "<header>a</header><p>b</p>", "a b"},
		{"a title and nothing else", "text/html", "<html><head><title> 504\nGateway &amp; Time-out </title></head><body> </body></html>", "504 Gateway & Time-out"},
		{"nothing to read", "text/html", "<html><body><script>x()</script></body></html>", nothing},
		{"an element that is not closed parts words", "text/html", "<p>a<br>b<hr>c</p>", "a b c"},
		{"an element that ends parts words", "text/html", "<div>a</div>b", "a b"},
		{"a head that is not closed", "text/html", "<html><head><title>T</title><body>a</body></html>", "a"},
		{"a body without its tag", "text/html", "<html><head><title>T</title></head>a</html>", "a"},
		{"what a head may hold does not end it", "text/html", `<head><meta charset="utf-8"><link rel="icon"><base href="/"><noscript>no</noscript><template>no</template><title>T</title></head><p>a</p>`, "a"},
		{"of a head only the title is read", "text/html", `<head><noscript>no</noscript><title>T</title></head>`, "T"},
		{"text right behind a script", "text/html", "<script>no</script>a", "a"},
		{"bytes that are not UTF-8", "text/html", "<p>gone\xff</p>", "gone\ufffd"},
		{"JSON that is called HTML", "text/html", `{"detail":"a"}`, "a"},
		{"tags in plain text stay", "text/plain", "expected <tag>", "expected <tag>"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := failures.ReadRefusal(http.StatusBadGateway, test.contentType, []byte(test.body))
			if diff := cmp.Diff(failures.Refusal{Words: test.want}, got); diff != "" {
				t.Errorf("ReadRefusal of %q (-want +got):\n%s", test.body, diff)
			}
		})
	}
}

func TestReadRefusalWithoutWordsNamesTheStatus(t *testing.T) {
	for status, want := range map[int]string{500: "Internal Server Error", 418: "I'm a teapot", 599: "status 599"} {
		if got := failures.ReadRefusal(status, "", nil).Words; got != want {
			t.Errorf("the words of an empty %d are %q, want %q", status, got, want)
		}
	}
}

func TestReadRefusalTakesOverTheKind(t *testing.T) {
	for _, test := range []struct {
		name, body string
		want       failures.Kind
	}{
		{"of the object", `{"failure_kind":"judge_failed"}`, failures.JudgeFailed},
		{"of its detail", `{"detail":{"failure_kind":"session_lost"}}`, failures.SessionLost},
		{"of its error", `{"error":{"failure_kind":"provider_unavailable"}}`, failures.ProviderUnavailable},
		{"the object's own first", `{"error":{"failure_kind":"c"},"detail":{"failure_kind":"b"},"failure_kind":"a"}`, "a"},
		{"then the detail's", `{"error":{"failure_kind":"c"},"detail":{"failure_kind":"b"}}`, "b"},
		{"a malformed one is passed over", `{"failure_kind":"Judge Failed","error":{"failure_kind":"c"}}`, "c"},
		{"with an owner", `{"failure_kind":"acme:gpu_lost"}`, "acme:gpu_lost"},
		{"neither registered nor with an owner", `{"failure_kind":"gpu_lost"}`, "gpu_lost"},
		{"a capital", `{"failure_kind":"Gpu"}`, ""},
		{"a line break", `{"failure_kind":"gpu\n"}`, ""},
		{"white space", `{"failure_kind":" gpu"}`, ""},
		{"two owners", `{"failure_kind":"a:b:c"}`, ""},
		{"no text", `{"failure_kind":5,"detail":{"failure_kind":null},"error":{"failure_kind":["a"]}}`, ""},
		{"a list of faults", `{"detail":[{"failure_kind":"a"}]}`, ""},
		{"in plain text", `failure_kind: a`, ""},
		{"deeper than that", `{"detail":{"error":{"failure_kind":"a"}}}`, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := failures.ReadRefusal(500, "", []byte(test.body)).Kind; got != test.want {
				t.Errorf("the kind of %s is %q, want %q", test.body, got, test.want)
			}
		})
	}
}

// The literals on the right were printed by Python 3.11.
func TestPythonBytesIsPythons(t *testing.T) {
	for bytes, want := range map[string]string{
		"":                       `b''`,
		"plain":                  `b'plain'`,
		"it's":                   `b"it's"`,
		`say "hi"`:               `b'say "hi"'`,
		`it's "both" `:           `b'it\'s "both" '`,
		"a\\b\n\r\t\x00\x1f\x7f": `b'a\\b\n\r\t\x00\x1f\x7f'`,
		"Tromsø…":                `b'Troms\xc3\xb8\xe2\x80\xa6'`,
		"\xff":                   `b'\xff'`,
		`\'`:                     `b"\\'"`,
	} {
		if got := pythonBytes([]byte(bytes)); got != want {
			t.Errorf("pythonBytes(%q) is %s, want %s", bytes, got, want)
		}
	}
	twice := passedOn("Agent___a", passedOn("Model___m", []byte("{\"detail\":\"model's \\\"loading\\\"\\n ø\"}")))
	const want = `"Hit an exception in Agent___a calling an inner server: b'\"Hit an exception in Model___m calling an inner server: b\\'{\\\\\"detail\\\\\":\\\\\"model\\\\\\\\\\'s \\\\\\\\\\\\\\\\\\\\\"loading\\\\\\\\\\\\\\\\\\\\\"\\\\\\\\\\\\\\\\n \\\\\\\\xc3\\\\\\\\xb8\\\\\"}\\'\"'"`
	if diff := cmp.Diff(want, string(twice)); diff != "" {
		t.Errorf("passed on twice (-want +got):\n%s", diff)
	}
}

// pythonBytes is the repr of a Python bytes object.
func pythonBytes(b []byte) string {
	quote := byte('\'')
	if slices.Contains(b, '\'') && !slices.Contains(b, '"') {
		quote = '"'
	}
	out := []byte{'b', quote}
	for _, c := range b {
		switch {
		case c == quote || c == '\\':
			out = append(out, '\\', c)
		case c == '\n':
			out = append(out, `\n`...)
		case c == '\r':
			out = append(out, `\r`...)
		case c == '\t':
			out = append(out, `\t`...)
		case c < ' ' || c >= 0x7F:
			out = fmt.Appendf(out, `\x%02x`, c)
		default:
			out = append(out, c)
		}
	}
	return string(append(out, quote))
}

// passedOn is the body with which a Gym server passes on a refusal.
func passedOn(server string, inner []byte) []byte {
	text := "Hit an exception in " + server + " calling an inner server: " + pythonBytes(inner)
	// The text is ASCII, of which JSON escapes nothing more here.
	return []byte(`"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(text) + `"`)
}

func TestReadRefusalUnwrapsInnerCalls(t *testing.T) {
	for _, test := range []struct {
		name, innermost string
		want            string
		kind            failures.Kind
	}{
		{"JSON", `{"detail":"model is loading","failure_kind":"provider_unavailable"}`, "model is loading", failures.ProviderUnavailable},
		{"every escape", `{"detail":"it's \"both\" \\ kinds\n\tof\u0000 quotes \\xff \\n — Tromsø 😀"}`, "it's \"both\" \\ kinds\n\tof\x00 quotes \\xff \\n — Tromsø 😀", ""},
		{"single quotes only", `{'error': 'x'}`, `{'error': 'x'}`, ""},
		{"double quotes only", `{"error": "x"}`, "x", ""},
		{"plain text", "a\\b 'c'\r\n", `a\b 'c'`, ""},
		{"plain text of several lines", "first\r\nsecond\tthird\rfourth", "first\r\nsecond\tthird\rfourth", ""},
		{"a JSON string", `"a"`, "a", ""},
		{"a page", "<!DOCTYPE html>\n<title>t</title><p>it's &quot;gone&quot;</p>", `t it's "gone"`, ""},
		{"bytes that are not UTF-8", "gone\xff", "gone\ufffd", ""},
	} {
		servers := []string{"SimpleAgent___a", "SimpleModelServer___policy", "Third___c", "Fourth___d"}
		for depth := 1; depth <= len(servers); depth++ {
			t.Run(fmt.Sprintf("%s, %d deep", test.name, depth), func(t *testing.T) {
				body := []byte(test.innermost)
				for i := depth - 1; i >= 0; i-- {
					body = passedOn(servers[i], body)
				}
				want := failures.Refusal{Words: test.want, Kind: test.kind, Servers: servers[:depth]}
				got := failures.ReadRefusal(500, "application/json", body)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		}
	}
}

func TestReadRefusalUnwrapsWhereverTheWordsAre(t *testing.T) {
	account := "Hit an exception in A___a calling an inner server: b'" + `{"detail":"x","failure_kind":"inner"}` + "'"
	quoted := strings.ReplaceAll(account, `"`, `\"`)
	want := failures.Refusal{Words: "x", Kind: "inner", Servers: []string{"A___a"}}
	for _, body := range []string{
		account,
		`"` + quoted + `"`,
		`{"detail":"` + quoted + `"}`,
		`{"error":{"message":"` + quoted + `","failure_kind":"outer"}}`, // the innermost server knows best
	} {
		if diff := cmp.Diff(want, failures.ReadRefusal(500, "", []byte(body))); diff != "" {
			t.Errorf("ReadRefusal of %s (-want +got):\n%s", body, diff)
		}
	}
}

func TestReadRefusalReadsEscapesThatPythonNeedNotPrint(t *testing.T) {
	body := `Hit an exception in A___a calling an inner server: b"say \"hi\", it\'s \x41"`
	want := failures.Refusal{Words: `say "hi", it's A`, Servers: []string{"A___a"}}
	if diff := cmp.Diff(want, failures.ReadRefusal(500, "", []byte(body))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestReadRefusalKeepsAnAccountThatItCannotOpen(t *testing.T) {
	const account = `Hit an exception in A___a calling an inner server: `
	for _, literal := range []string{
		`b'never ends`, `b'`, `b`, `b'a"`, `b'a'b'`, `b'a' and more`, `b'a\'`, `b'\x'`, `b'\x4'`, `b'\xzz'`, `b'\q'`, `b'\`, `'a'`, `B'a'`, `a`, `None`,
	} {
		want := failures.Refusal{Words: account + literal}
		if diff := cmp.Diff(want, failures.ReadRefusal(500, "", []byte(account+literal))); diff != "" {
			t.Errorf("ReadRefusal of %s (-want +got):\n%s", literal, diff)
		}
	}
	// The part of the account that can be opened is.
	got := failures.ReadRefusal(500, "", passedOn("Outer___o", []byte(account+`b'cut off`)))
	want := failures.Refusal{Words: account + `b'cut off`, Servers: []string{"Outer___o"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Where the innermost body has no words, the status text stands in for them; its
// kind and the servers on the way are still worth having.
func TestReadRefusalOpensAnAccountOfNothing(t *testing.T) {
	const account = `Hit an exception in A___a calling an inner server: `
	for literal, kind := range map[string]failures.Kind{
		`b''`: "", `b""`: "", `b'{}'`: "", `b'null'`: "", `b'  '`: "", `b'{"failure_kind":"session_lost"}'`: failures.SessionLost,
	} {
		want := failures.Refusal{Words: "Internal Server Error", Kind: kind, Servers: []string{"A___a"}}
		if diff := cmp.Diff(want, failures.ReadRefusal(500, "", []byte(account+literal))); diff != "" {
			t.Errorf("ReadRefusal of %s (-want +got):\n%s", literal, diff)
		}
	}
}

func TestRefusalNamesTheServersOnTheWay(t *testing.T) {
	got := failures.Refusal{Words: "model is loading", Servers: []string{"SimpleAgent___a", "SimpleModelServer___policy"}}.String()
	if want := "model is loading (via SimpleAgent___a, SimpleModelServer___policy)"; got != want {
		t.Errorf("it reads %q, want %q", got, want)
	}
}

func FuzzReadRefusal(f *testing.F) {
	for _, body := range []string{
		"", "null", `{"detail":[{"loc":["body",0],"msg":"m"}]}`, `{"error":{"message":"a","failure_kind":"b:c"}}`, `"a"`, "\xff", "<html><title>t</title>", "<!doctype html><script>",
		"<p>&amp;</p><!-- <style>", string(passedOn("A", []byte("it's"))), string(passedOn("A", passedOn("B", []byte(`"'"`)))),
		`Hit an exception in A calling an inner server: b'\xff'`, `{"detail":"Hit an exception in A calling an inner server: b'{}'"}`, strings.Repeat("[", 20000),
	} {
		f.Add(500, "text/html", []byte(body))
		f.Add(99, "application/json", []byte(body))
	}
	f.Fuzz(func(t *testing.T, status int, contentType string, body []byte) {
		got := failures.ReadRefusal(status, contentType, body)
		if got.Words == "" || strings.TrimSpace(got.Words) != got.Words || !utf8.ValidString(got.String()) {
			t.Fatalf("ReadRefusal of %q says %q", body, got)
		}
		if got.Kind != "" && !got.Kind.WellFormed() {
			t.Fatalf("ReadRefusal of %q is of the kind %q", body, got.Kind)
		}
		// What a Gym server passes on keeps its words.
		passed := failures.ReadRefusal(500, "", passedOn("Server___s", body))
		if plain := failures.ReadRefusal(0, "", body); plain.Words != "status 0" {
			want := failures.Refusal{Words: plain.Words, Kind: plain.Kind, Servers: append([]string{"Server___s"}, plain.Servers...)}
			if diff := cmp.Diff(want, passed); diff != "" && len(plain.Servers) < 60 {
				t.Fatalf("passed on, %q reads (-want +got):\n%s", body, diff)
			}
		}
	})
}
