package cookies_test

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/internal/cookies"
	"example.com/turn/internal/rawjson"
	"example.com/turn/protocol"
)

var jarTime = time.Date(2026, 8, 22, 12, 0, 0, 0, time.UTC)

// jarOf is a jar that has seen one reply for each list of Set-Cookie headers.
func jarOf(replies ...[]string) *cookies.Jar {
	jar := cookies.NewJar(&failures.Secrets{})
	for _, lines := range replies {
		jar.MergeReply(http.Header{"Set-Cookie": lines}, jarTime)
	}
	return jar
}

// plainValue is what a Set-Cookie value is in JSON.
func plainValue(t *testing.T, wire string) string {
	t.Helper()
	pairs := jarOf([]string{"s=" + wire}).Plain()
	if len(pairs) != 1 {
		t.Fatalf("s=%s leaves %d cookies", wire, len(pairs))
	}
	return pairs[0].Value
}

// wireValue is what a value in JSON is in a Cookie header.
func wireValue(plain string) string {
	jar := cookies.NewJar(nil)
	jar.MergePlain([]protocol.Pair{{Name: "s", Value: plain}})
	return strings.TrimPrefix(jar.Header(), "s=")
}

func TestAJarReadsSetCookie(t *testing.T) {
	for _, test := range []struct{ name, line, want string }{
		{"name and value", "s=1", "s=1"},
		{"attributes are ignored", "s=1; Path=/x; Domain=evil.example; Secure; HttpOnly; SameSite=strict; Partitioned", "s=1"},
		{"white space around", "  s \t= \t1 \t; Path=/", "s=1"},
		{"an empty value", "s=", "s="},
		{"an equals sign in the value", "s=a=b==", "s=a=b=="},
		{"spaces and commas in the value", "s=a b, c; Path=/", "s=a b, c"},
		{"quotes stay", `s="1"; Path=/`, `s="1"`},
		{"escapes stay", `s="a\054\"b\\"; Path=/`, `s="a\054\"b\\"`},
		{"a semicolon in quotes", `s="a;b; c=d" ; Path=/`, `s="a;b; c=d"`},
		{"an escaped quote before a semicolon", `s="a\";b"; Path=/`, `s="a\";b"`},
		{"a quote that never closes", `s="a; Path=/`, `s="a`},
		{"a quote that closes too early", `s="a"b;c"; Path=/`, `s="a"b`},
		{"a quote within", `s=a"b;c"`, `s=a"b`},
		{"a quote at the end of it all", `s="`, `s="`},
		{"an escape at the end of it all", `s="a\`, `s="a\`},
		{"a tab within", "s=a\tb", "s=a\tb"},
		{"bytes beyond ASCII", "s=Tromsø\xff", "s=Tromsø\xff"},
		{"a name of odd characters", "SimpleAgent___a.b-c!#$%&'*+^`|~=1", "SimpleAgent___a.b-c!#$%&'*+^`|~=1"},
		{"a name that Python reserves", "path=/x", "path=/x"},

		{"nothing", "", ""},
		{"no equals sign", "s", ""},
		{"no equals sign before the attributes", "s; Path=/", ""},
		{"no name", "=1", ""},
		{"no name but space", " =1", ""},
		{"a space in the name", "a b=1", ""},
		{"a quote in the name", `"s"=1`, ""},
		{"a comma in the name", "a,b=1", ""},
		{"a control character in the name", "s\x01=1", ""},
		{"a line break in the name", "s\r\nX: y=1", ""},
		{"a name that is not UTF-8: JSON could not carry it", "s\xff=1", ""},
		{"a NUL in the value", "s=a\x00b", ""},
		{"a line break in the value", "s=a\r\nX-Injected: 1", ""},
		{"a line break in quotes", "s=\"a\nb\"", ""},
		{"a DEL in the value", "s=a\x7fb", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			jar := jarOf([]string{test.line})
			if diff := cmp.Diff(test.want, jar.Header()); diff != "" {
				t.Errorf("Set-Cookie: %q goes back as (-want +got):\n%s", test.line, diff)
			}
			if jar.Empty() != (test.want == "") {
				t.Errorf("Empty is %v", jar.Empty())
			}
		})
	}
}

func TestAJarMergesByName(t *testing.T) {
	const session, route = "session=1", "route=a"
	for _, test := range []struct {
		name    string
		replies [][]string
		want    string
	}{
		{"several in a reply", [][]string{{session, route}}, "session=1; route=a"},
		{"the last one wins", [][]string{{"session=0", route, session}}, "session=1; route=a"},
		{"later replies add", [][]string{{session}, {route}}, "session=1; route=a"},
		{"later replies replace, in place", [][]string{{session, route}, {"session=2"}}, "session=2; route=a"},
		{"a reply without cookies changes nothing", [][]string{{session, route}, nil, {}}, "session=1; route=a"},
		{"names differ in case", [][]string{{session, "Session=2"}}, "session=1; Session=2"},
		{"paths and domains do not tell cookies apart", [][]string{{"session=1; Path=/a; Domain=a", "session=2; Path=/b; Domain=b"}}, "session=2"},
		{"Max-Age=0 removes", [][]string{{session, route}, {"session=; Max-Age=0"}}, "route=a"},
		{"a negative one too", [][]string{{session}, {"session=x; max-age=-1; Path=/"}}, ""},
		{"in quotes too", [][]string{{session}, {`session=x; Max-Age="0"`}}, ""},
		{"zero in whatever spelling", [][]string{{session}, {"session=x; Max-Age=00"}}, ""},
		{"a positive one does not", [][]string{{session}, {"session=2; Max-Age=1"}}, "session=2"},
		{"a past date removes", [][]string{{session, route}, {"session=null; path=/; expires=Thu, 01 Jan 1970 00:00:00 GMT; httponly"}}, "route=a"},
		{"with dashes", [][]string{{session}, {"session=; Expires=Thu, 01-Jan-1970 00:00:00 GMT"}}, ""},
		{"with dashes and two digits of the year", [][]string{{session}, {"session=; Expires=Sunday, 06-Nov-94 08:49:37 GMT"}}, ""},
		{"with a long weekday and four digits of the year", [][]string{{session}, {"session=; Expires=Thursday, 01-Jan-1970 00:00:00 GMT"}}, ""},
		{"without a weekday, in another order", [][]string{{session}, {"session=; Expires=1994 nov 6 8:49:37"}}, ""},
		{"a day that no month has", [][]string{{session}, {"session=2; Expires=Thu, 31 Jun 1994 00:00:00 GMT"}}, "session=2"},
		{"an hour that no day has", [][]string{{session}, {"session=2; Expires=Thu, 01 Jan 1994 24:00:00 GMT"}}, "session=2"},
		{"a year before all calendars", [][]string{{session}, {"session=2; Expires=Thu, 01 Jan 1600 00:00:00 GMT"}}, "session=2"},
		{"a date without a year", [][]string{{session}, {"session=2; Expires=Thu, 01 Jan 00:00:00 GMT"}}, "session=2"},
		{"as C prints it", [][]string{{session}, {"session=; Expires=Sun Nov  6 08:49:37 1994"}}, ""},
		{"this very moment is past", [][]string{{session}, {"session=; Expires=Sat, 22 Aug 2026 12:00:00 GMT"}}, ""},
		{"a date to come does not", [][]string{{session}, {"session=2; Expires=Sat, 22 Aug 2026 12:00:01 GMT"}}, "session=2"},
		{"a date that is none does not", [][]string{{session}, {"session=2; Expires=yesterday"}}, "session=2"},
		{"Max-Age goes before a past date", [][]string{{session}, {"session=2; Max-Age=60; Expires=Thu, 01 Jan 1970 00:00:00 GMT"}}, "session=2"},
		{"and before a date to come", [][]string{{session}, {"session=2; Expires=Sun, 01 Jan 2040 00:00:00 GMT; Max-Age=0"}}, ""},
		{"a Max-Age that is none does not", [][]string{{session}, {"session=2; Max-Age=NaN; Expires=Thu, 01 Jan 1970 00:00:00 GMT"}}, ""},
		{"in whatever length", [][]string{{session}, {"session=2; Max-Age=99999999999999999999"}}, "session=2"},
		{"a minus is no number", [][]string{{session}, {"session=2; Max-Age=-"}}, "session=2"},
		{"nor is one with a unit", [][]string{{session}, {"session=2; Max-Age=0s"}}, "session=2"},
		{"of two Max-Ages the last counts", [][]string{{session}, {"session=2; Max-Age=0; Max-Age=5"}}, "session=2"},
		{"what looks like an attribute in the value is none", [][]string{{`session="x; Max-Age=0"`}}, `session="x; Max-Age=0"`},
		{"what was never there", [][]string{{"session=; Max-Age=0"}}, ""},
		{"removed and set again, in one reply", [][]string{{session, route}, {"session=; Max-Age=0", "session=2"}}, "route=a; session=2"},
		{"set and removed, in one reply", [][]string{{session, "session=; Max-Age=0", route}}, "route=a"},
		{"what is no cookie does not count", [][]string{{session, "nonsense", "=", "a b=c", route}}, "session=1; route=a"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, jarOf(test.replies...).Header()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// A jar with many cookies looks them up another way than one with few: by a table,
// which is made when the seventeenth comes. What expires, before that and after,
// is gone; set again it stands at the end, as a new one does, and a name that was
// never away keeps its place.
func TestAJarOfAnySizeForgetsAndKeepsItsOrder(t *testing.T) {
	for _, size := range []int{3, 16, 17, 18, 40} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			jar := cookies.NewJar(nil)
			var want []string // what the jar holds, in order
			say := func(lines ...string) {
				t.Helper()
				jar.MergeReply(http.Header{"Set-Cookie": lines}, jarTime)
			}
			check := func(after string) {
				t.Helper()
				if diff := cmp.Diff(strings.Join(want, "; "), jar.Header()); diff != "" {
					t.Errorf("after %s (-want +got):\n%s", after, diff)
				}
				if got := len(jar.Plain()); got != len(want) || jar.Empty() != (len(want) == 0) {
					t.Errorf("after %s: %d cookies, empty %v; want %d", after, got, jar.Empty(), len(want))
				}
			}
			say("gone=0", "gone=; Max-Age=0") // before there is a table
			for i := range size {
				want = append(want, fmt.Sprintf("c%d=%d", i, i))
				say(want[i])
			}
			check("all were set")
			say("c1=; Max-Age=0", "gone=; Max-Age=0")
			want = slices.Delete(want, 1, 2)
			check("one expired")
			say("c1=; Max-Age=0")
			check("it expired once more")
			say("c1=again", "c0=anew")
			want[0] = "c0=anew"
			want = append(want, "c1=again")
			check("it was set again")
			say("c1=and again", "gone=back")
			want[len(want)-1] = "c1=and again"
			want = append(want, "gone=back")
			check("it was set twice")
			jar.MergePlain([]protocol.Pair{{Name: "c1", Value: "and again"}, {Name: "c2", Value: "two"}})
			want[1] = "c2=two"
			check("an agent brought its cookies back")
			for i := range size {
				say(fmt.Sprintf("c%d=; Max-Age=0", i))
			}
			say("gone=; Max-Age=0")
			want = nil
			check("all expired")
			say("c0=new")
			want = []string{"c0=new"}
			check("one came back")
		})
	}
}

// The values on the right are those of Python 3.11's http.cookies._unquote.
func TestAQuotedValueIsPlainInJSON(t *testing.T) {
	for wire, want := range map[string]string{
		`abc`:                `abc`,
		`"abc"`:              `abc`,
		`"a\"b"`:             `a"b`,
		`"a\\b"`:             `a\b`,
		`"a\054b\073"`:       `a,b;`,
		`"\351t\303\251"`:    "ét\u00c3\u00a9",
		`"\400"`:             `400`,
		`"\08"`:              `08`,
		`"\12"`:              `12`,
		`"\0541"`:            `,1`,
		`"\\054"`:            `\054`,
		`"\134054"`:          `\054`,
		`"a\qb"`:             `aqb`,
		`"a\"`:               `a\`,
		`"`:                  `"`,
		`""`:                 ``,
		`"\\"`:               `\`,
		`"\\\""`:             `\"`,
		`a"b`:                `a"b`,
		`a\054b`:             `a\054b`,
		`"é \" é"`:           `é " é`,
		`"\é"`:               `é`,
		`"\377\000"`:         "\u00ff\x00",
		`"a b; c"`:           `a b; c`,
		"\"\xff a\xc3\xa9\"": "\xed\xb3\xbf aé", // U+DCFF, as surrogateescape has it
		"\xff":               "\xed\xb3\xbf",
		"\x80é":              "\xed\xb2\x80é",
	} {
		if got := plainValue(t, wire); got != want {
			t.Errorf("%s is %q in JSON, want %q", wire, got, want)
		}
	}
}

// Where there are quotes, they and what is in them are those of Python 3.11's
// http.cookies._quote. It also quotes values that RFC 6265 needs no quotes for.
func TestAPlainValueIsQuotedWhenItNeedsToBe(t *testing.T) {
	for plain, want := range map[string]string{
		`abc`:    `abc`,
		``:       ``,
		`a=b`:    `a=b`,
		`a/b`:    `a/b`,
		`a b`:    `"a b"`,
		`a;b`:    `"a\073b"`,
		`a,b`:    `"a\054b"`,
		`a"b`:    `"a\"b"`,
		`a\b`:    `"a\\b"`,
		`"abc"`:  `"\"abc\""`,
		`\054`:   `"\\054"`,
		"a\tb":   `"a\011b"`,
		"a\r\nb": `"a\015\012b"`,

		"!#$%&'*+-.^_`|~:()/<=>?@[]{}":   "!#$%&'*+-.^_`|~:()/<=>?@[]{}", // cookie-octets of RFC 6265, all of them
		"!#$%&'*+-.^_`|~: ()/<=>?@[]{}":  "\"!#$%&'*+-.^_`|~: ()/<=>?@[]{}\"",
		"\x00\x1f\x7f":                   `"\000\037\177"`,
		"a\x7f":                          `"a\177"`,
		"é":                              `"\351"`,
		"Tromsø":                         `"Troms\370"`,
		"\u0080\u00ff":                   `"\200\377"`,
		"\u0100€😀 ":                      "\"\u0100€😀 \"",
		"\xed\xb3\xbf aé":                "\"\xff a\\351\"",
		"\xed\xb2\x80":                   "\"\x80\"",
		"eyJhIjoxfQ==.ZxY_-.abc~1/2+3:4": "eyJhIjoxfQ==.ZxY_-.abc~1/2+3:4",
	} {
		if got := wireValue(plain); got != want {
			t.Errorf("%q goes out as %q, want %q", plain, got, want)
		}
	}
}

func TestResourcesCookiesAreMerged(t *testing.T) {
	for _, test := range []struct {
		name string
		set  []string
		json string
		want string
	}{
		{"nothing comes back", []string{"session=1", "route=a"}, `{}`, "session=1; route=a"},
		{"the same comes back", []string{"session=1", "route=a"}, `{"route":"a","session":"1"}`, "session=1; route=a"},
		{"another value", []string{"session=1", "route=a"}, `{"session":"2"}`, "session=2; route=a"},
		{"another cookie", []string{"session=1"}, `{"route":"a b"}`, `session=1; route="a b"`},
		{"equal once plain: it keeps its form", []string{`session="a\054\b"`}, `{"session":"a,b"}`, `session="a\054\b"`},
		{"quotes that it does not need stay too", []string{`session="1"`}, `{"session":"1"}`, `session="1"`},
		{"quotes of the value itself", []string{`session="1"`}, `{"session":"\"1\""}`, `session="\"1\""`},
		{"bytes that are not UTF-8 come back as they were", []string{"session=\"a\xff\""}, `{"session":"a\udcff"}`, "session=\"a\xff\""},
		{"and in another value", []string{"session=1"}, `{"session":"a\udcff"}`, "session=\"a\xff\""},
		{"an empty value", []string{"session=1"}, `{"session":""}`, "session="},
		{"a name again", []string{"session=1"}, `{"session":"2","session":"3"}`, "session=3"},
		{"a line break cannot end the header", []string{"session=1"}, `{"session":"2\r\nX-Injected: 1"}`, `session="2\015\012X-Injected: 1"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			jar := jarOf(test.set)
			pairs, err := cookies.Parse([]byte(test.json))
			if err != nil {
				t.Fatal(err)
			}
			jar.MergePlain(pairs)
			if diff := cmp.Diff(test.want, jar.Header()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseCookiesRefuses(t *testing.T) {
	for _, test := range []struct{ json, want string }{
		{`null`, "want an object, got null"},
		{`[]`, "want an object, got an array"},
		{`{"s":1}`, `want a string as the value of "s", got a number`},
		{`{"s":null}`, `want a string as the value of "s", got null`},
		{`{"s":"1"`, "not JSON: the text ends where a comma or a closing bracket should be at byte 8"},
		{`{"":"1"}`, `"" is not a cookie name`},
		{`{"a b":"1"}`, `"a b" is not a cookie name`},
		{`{"a=b":"1"}`, `"a=b" is not a cookie name`},
		{`{"a;b":"1"}`, `"a;b" is not a cookie name`},
		{`{"a,b":"1"}`, `"a,b" is not a cookie name`},
		{`{"\"a\"":"1"}`, `"\"a\"" is not a cookie name`},
		{`{"a\r\nX":"1"}`, `"a\r\nX" is not a cookie name`},
		{`{"a\udcff":"1"}`, `"a\xed\xb3\xbf" is not a cookie name`},
		{`{"ok":"1","a\u007f":"1"}`, `"a\x7f" is not a cookie name`},
	} {
		if _, err := cookies.Parse([]byte(test.json)); err == nil || err.Error() != test.want {
			t.Errorf("ParseCookies(%s) says %v, want %s", test.json, err, test.want)
		}
	}
}

func TestCookieValuesBecomeSecrets(t *testing.T) {
	var secrets failures.Secrets
	jar := cookies.NewJar(&secrets)
	jar.MergeReply(http.Header{"Set-Cookie": {`a="quoted\054value"; Path=/public`, "b=removed-later", "c=short", "b=; Max-Age=0"}}, jarTime)
	jar.MergePlain([]protocol.Pair{{Name: "d", Value: "plain value"}})
	const text = `"quoted\054value" quoted,value removed-later short /public "plain value" plain value`
	if diff := cmp.Diff(`*** *** *** short /public *** ***`, secrets.Mask(text)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func FuzzJar(f *testing.F) {
	for _, line := range []string{
		"", "s=1; Path=/", `s="a\054b"`, `s="a;b"; Max-Age=0`, "s=\xff\"", "s=\"\xc3\\\xa9\"", "s=\xed\xb3\xbf", "s=a\r\nX: 1", "é=1", "\xd4=", "a b=c", `s="\`, `s=" "x`, "s=1; Expires=Thu, 01 Jan 1970 00:00:00 GMT", "s=\t\"a\"\t;",
	} {
		f.Add(line, "s=2", `{"s":"a\"\\;,é€\u0000\udcff"}`)
		f.Add("t=1", line, `{"s":"\ud800\udc00\udc7f"}`)
	}
	f.Fuzz(func(t *testing.T, first, second, brought string) {
		jar := jarOf([]string{first}, []string{second})
		check := func() {
			if !isHeaderValue(jar.Header()) {
				t.Fatalf("net/http would refuse the Cookie header %q", jar.Header())
			}
		}
		check()
		before := jar.Header()
		jar.MergePlain(jar.Plain())
		if got := jar.Header(); got != before {
			t.Fatalf("merged with its own plain values %q becomes %q", before, got)
		}
		// So it does by way of JSON, where an agent has them.
		var written rawjson.ObjectWriter
		for _, pair := range jar.Plain() {
			written.Text(pair.Name, pair.Value)
		}
		pairs, err := cookies.Parse(written.End().Bytes())
		if err != nil {
			t.Fatal(err)
		}
		jar.MergePlain(pairs)
		if got := jar.Header(); got != before {
			t.Fatalf("by way of JSON %q becomes %q", before, got)
		}
		pairs, err = cookies.Parse([]byte(brought))
		if err != nil {
			return
		}
		jar.MergePlain(pairs)
		check()
		// A plain value cannot end its cookie, and is the same after a journey over
		// the wire.
		for _, pair := range pairs {
			if wire := wireValue(pair.Value); strings.ContainsAny(wire, ";,") {
				t.Fatalf("%q goes out as %q", pair.Value, wire)
			}
			if got := plainValue(t, wireValue(pair.Value)); got != pair.Value && canTravel(pair.Value) {
				t.Fatalf("%q goes out as %q and comes back as %q", pair.Value, wireValue(pair.Value), got)
			}
		}
	})
}

// isHeaderValue reports whether net/http sends a header value, by the rule of
// golang.org/x/net/http/httpguts.ValidHeaderFieldValue.
func isHeaderValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < ' ' && c != '\t' || c == 0x7F {
			return false
		}
	}
	return true
}

// canTravel reports whether a plain value is one that Python could have made of
// bytes: text, in which a byte that is not UTF-8 is a surrogate (U+DC80 to
// U+DCFF). Two of them side by side may be text once they are bytes again.
func canTravel(plain string) bool {
	surrogate := false // the character before was one
	for i := 0; i < len(plain); {
		r, n := utf8.DecodeRuneInString(plain[i:])
		if r == utf8.RuneError && n == 1 {
			if s := plain[i:]; surrogate || len(s) < 3 || s[1] != 0xB2 && s[1] != 0xB3 {
				return false
			}
			n = 3
		}
		surrogate = r == utf8.RuneError && n == 3 && plain[i] == 0xED
		i += n
	}
	return true
}

// A jar takes over a mebibyte in all its time, what is replaced and expired included.
// What is there already takes nothing.
func TestAJarIsBounded(t *testing.T) {
	const piece = cookies.MaxBytes / 4
	now := time.Now()
	for name, line := range map[string]func(i int) []string{
		"new names":           func(i int) []string { return []string{fmt.Sprintf("n%d=%s", i, strings.Repeat("x", piece-2))} },
		"new values":          func(i int) []string { return []string{fmt.Sprintf("nn=%d%s", i, strings.Repeat("x", piece-3))} },
		"set and taken again": func(i int) []string { return []string{"nn=" + strings.Repeat("x", piece-2), "nn=; Max-Age=0"} },
	} {
		jar := cookies.NewJar(&failures.Secrets{})
		for i := range 6 {
			err := jar.MergeReply(http.Header{"Set-Cookie": line(i)}, now)
			if want := i >= 4; errors.Is(err, cookies.ErrTooMuch) != want {
				t.Errorf("%s: the %d. time says %v", name, i+1, err)
			}
		}
		if err := jar.MergeReply(http.Header{"Set-Cookie": {"other=1"}}, now); !errors.Is(err, cookies.ErrTooMuch) || strings.Contains(jar.Header(), "other") {
			t.Errorf("%s: a full jar takes one more cookie, and says %v", name, err)
		}
		if len(jar.Header()) > cookies.MaxBytes+100 {
			t.Errorf("%s: a Cookie header of %d bytes", name, len(jar.Header()))
		}
	}
	jar := cookies.NewJar(&failures.Secrets{})
	for range 100 {
		if err := jar.MergeReply(http.Header{"Set-Cookie": {"same=" + strings.Repeat("x", piece)}}, now); err != nil {
			t.Fatalf("the same cookie again: %v", err)
		}
	}
}

// An agent may use tools for hours whose server signs its cookie anew with each reply:
// its jar, whose values are no secrets, keeps only the last one.
func TestACookieMayBeRenewedWithoutAnEnd(t *testing.T) {
	jar := cookies.NewJar(nil)
	jar.MergePlain([]protocol.Pair{{Name: "session", Value: "seed"}})
	long := strings.Repeat("x", 4000)
	for i := range 2 * cookies.MaxBytes / len(long) {
		want := fmt.Sprintf("session=%d%s", i, long)
		if err := jar.MergeReply(http.Header{"Set-Cookie": {want}}, time.Now()); err != nil || jar.Header() != want {
			t.Fatalf("the %d. time: %v", i+1, err)
		}
	}
	if err := jar.MergeReply(http.Header{"Set-Cookie": {"other=" + strings.Repeat("x", cookies.MaxBytes)}}, time.Now()); !errors.Is(err, cookies.ErrTooMuch) {
		t.Errorf("a cookie that is too long: %v", err)
	}
}

func TestParsedCookiesAreBounded(t *testing.T) {
	for size, fails := range map[int]bool{cookies.MaxBytes - 1: false, cookies.MaxBytes: true} {
		_, err := cookies.Parse([]byte(`{"a":"` + strings.Repeat("x", size) + `"}`))
		if (err != nil) != fails {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
	if _, err := cookies.Parse([]byte(`{"a b` + strings.Repeat("x", 1<<20) + `":""}`)); err == nil || len(err.Error()) > 200 {
		t.Errorf("a long name that is none is repeated: %.300v", err)
	}
}
