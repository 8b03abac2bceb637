package cookies_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/protocol"
)

// A session's value is as Starlette's SessionMiddleware signs it: with a time, so that
// it is another in the next second.
const (
	sessionValue   = "eyJzZXNzaW9uX2lkIjogIjZiNzc3YjRkLTQ1YzEtNDRmZS1iM2Y1LTk0YzY0YzE0ZTIzZiJ9.aomaMA.pNWy6BUUXkVfKrN3eYvCgGzBWrU"
	renewedValue   = "eyJzZXNzaW9uX2lkIjogIjZiNzc3YjRkLTQ1YzEtNDRmZS1iM2Y1LTk0YzY0YzE0ZTIzZiJ9.aomaMQ.0zMqvWmpIj1SQ2wE8lPf3hTt5Ck"
	sessionSuffix  = "; path=/; Max-Age=1209600; httponly; samesite=lax"
	quotedAsPython = `"a\054b\073 \"c\" \303\251"`
)

var (
	sessionHeader = setCookie("session=" + sessionValue + sessionSuffix)
	renewedHeader = setCookie("session=" + renewedValue + sessionSuffix)
	datedHeader   = setCookie("session=" + sessionValue + "; expires=Sat, 05 Sep 2026 12:00:00 GMT; path=/; httponly; samesite=lax")
	goneHeader    = setCookie("session=null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT; httponly; samesite=lax")
)

func setCookie(lines ...string) http.Header { return http.Header{"Set-Cookie": lines} }

// withAndWithout runs a benchmark of jars whose values become secrets, and of others.
func withAndWithout(b *testing.B, run func(b *testing.B, newJar func() *cookies.Jar)) {
	b.Run("with secrets", func(b *testing.B) {
		run(b, func() *cookies.Jar { return cookies.NewJar(&failures.Secrets{}) })
	})
	b.Run("without", func(b *testing.B) {
		run(b, func() *cookies.Jar { return cookies.NewJar(nil) })
	})
}

// BenchmarkMergeReply has a jar of its own for each list of replies, for one that takes
// over new values for ever is full some time. "the same again" has one for all.
func BenchmarkMergeReply(b *testing.B) {
	for _, test := range []struct {
		name    string
		replies []http.Header
		want    string
	}{
		{"no cookie", []http.Header{{}}, ""},
		{"a new one", []http.Header{sessionHeader}, "session=" + sessionValue},
		{"a new one, and another value", []http.Header{sessionHeader, renewedHeader}, "session=" + renewedValue},
		{"a new one that has a date", []http.Header{datedHeader}, "session=" + sessionValue},
		{"a new one, and its end", []http.Header{sessionHeader, goneHeader}, ""},
		{"twenty", []http.Header{twenty()}, twentyInHeader()},
	} {
		b.Run(test.name, func(b *testing.B) {
			withAndWithout(b, func(b *testing.B, newJar func() *cookies.Jar) {
				merge(b, newJar(), test.replies, test.want)
				b.ReportAllocs()
				for b.Loop() {
					jar := newJar()
					for _, reply := range test.replies {
						_ = jar.MergeReply(reply, jarTime)
					}
				}
			})
		})
	}
	b.Run("the same again", func(b *testing.B) {
		withAndWithout(b, func(b *testing.B, newJar func() *cookies.Jar) {
			jar := newJar()
			merge(b, jar, []http.Header{sessionHeader}, "session="+sessionValue)
			b.ReportAllocs()
			for b.Loop() {
				if err := jar.MergeReply(sessionHeader, jarTime); err != nil {
					b.Fatal(err)
				}
			}
			merge(b, jar, nil, "session="+sessionValue)
		})
	})
}

// merge merges replies into a jar that then has to send what is wanted.
func merge(b *testing.B, jar *cookies.Jar, replies []http.Header, want string) {
	b.Helper()
	for _, reply := range replies {
		if err := jar.MergeReply(reply, jarTime); err != nil {
			b.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, jar.Header()); diff != "" {
		b.Fatalf("(-want +got):\n%s", diff)
	}
}

// twenty are more cookies than are looked for one by one.
func twenty() http.Header {
	return setCookie(strings.Split(strings.ReplaceAll(twentyInHeader(), "; ", sessionSuffix+"\n")+sessionSuffix, "\n")...)
}

func twentyInHeader() string {
	pairs := make([]string, 20)
	for i := range pairs {
		pairs[i] = "cookie" + string(rune('a'+i)) + "=" + sessionValue
	}
	return strings.Join(pairs, "; ")
}

// jars are those that most sessions have, and a larger one.
var jars = []struct {
	name    string
	replies http.Header
	header  string
	plain   []protocol.Pair
}{
	{"none", nil, "", []protocol.Pair{}},
	{"one", sessionHeader, "session=" + sessionValue, []protocol.Pair{{Name: "session", Value: sessionValue}}},
	{
		"three, two of them quoted", setCookie("session="+sessionValue+sessionSuffix, "theme=\"dark\"; Path=/", "prefs="+quotedAsPython),
		"session=" + sessionValue + "; theme=\"dark\"; prefs=" + quotedAsPython,
		[]protocol.Pair{{Name: "session", Value: sessionValue}, {Name: "theme", Value: "dark"}, {Name: "prefs", Value: `a,b; "c" Ã©`}},
	},
}

func BenchmarkHeader(b *testing.B) {
	for _, test := range jars {
		b.Run(test.name, func(b *testing.B) {
			jar := cookies.NewJar(nil)
			merge(b, jar, []http.Header{test.replies}, test.header)
			b.ReportAllocs()
			for b.Loop() {
				jar.Header()
			}
		})
	}
}

func BenchmarkPlain(b *testing.B) {
	for _, test := range jars {
		b.Run(test.name, func(b *testing.B) {
			jar := cookies.NewJar(nil)
			merge(b, jar, []http.Header{test.replies}, test.header)
			if diff := cmp.Diff(test.plain, jar.Plain()); diff != "" {
				b.Fatalf("(-want +got):\n%s", diff)
			}
			b.ReportAllocs()
			for b.Loop() {
				jar.Plain()
			}
		})
	}
}

// BenchmarkMergePlain takes over what an agent hands back: most often what the jar has.
func BenchmarkMergePlain(b *testing.B) {
	for _, test := range jars {
		b.Run(test.name, func(b *testing.B) {
			withAndWithout(b, func(b *testing.B, newJar func() *cookies.Jar) {
				jar := newJar()
				merge(b, jar, []http.Header{test.replies}, test.header)
				b.ReportAllocs()
				for b.Loop() {
					jar.MergePlain(test.plain)
				}
				merge(b, jar, nil, test.header)
			})
		})
	}
}
