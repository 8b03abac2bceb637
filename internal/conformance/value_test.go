package conformance

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestCanonicalFormIsPythons(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{` { "b" : 1 , "a" : [ true , null , "x y" ] } `, `{"a":[true,null,"x y"],"b":1}`},
		{`{"a": 1, "b": 2, "a": 3}`, `{"a":3,"b":2}`},
		{`{"A": 1, "a": 2, "é": 3, "": 4}`, `{"":4,"A":1,"a":2,"\u00e9":3}`},
		{`"café 😀 \u00e9 \ud83d\ude00 \/ \u2028 \u007f"`, `"caf\u00e9 \ud83d\ude00 \u00e9 \ud83d\ude00 / \u2028 \u007f"`},
		{`"\ud800 \udc00\ud800 \b\f\n\r\t\"\\\u0001"`, `"\ud800 \udc00\ud800 \b\f\n\r\t\"\\\u0001"`},
		{`[1.0, -0.0, 0, 1e5, 1E+2, 100.0]`, `[1,0,0,100000,100,100]`},
		{`[0.1, 5e-324, 1.5e300, 0.0001, 0.00001, 123456.789]`, `[0.1,5e-324,1.5e+300,0.0001,1e-05,123456.789]`},
		{`[1e15, 1e16, 999999999999999.0]`, `[1000000000000000.0,1e+16,999999999999999]`},
		{`[12345678901234567890, 18446744073709551616, -9223372036854775808]`, `[12345678901234567890,18446744073709551616,-9223372036854775808]`},
		{`[1e400, -1e400]`, `[{"$num":"1e400"},{"$num":"-1e400"}]`},
		{`[NaN, Infinity, -Infinity]`, `[{"$const":"NaN"},{"$const":"Infinity"},{"$const":"-Infinity"}]`},
		{`hello`, `{"$text":"hello"}`},
		{``, `{"$text":""}`},
		{"\"\xe9\xff\"", `{"$b64":"Iun/Ig=="}`},
	} {
		if got := string(readValue([]byte(test.text)).canonical()); got != test.want {
			t.Errorf("%s:\n got %s\nwant %s", test.text, got, test.want)
		}
	}
}

func TestReadsWhatIsJSONAndNothingElse(t *testing.T) {
	for _, text := range []string{
		`{}`, `[]`, ` [ ] `, `{"a":{"b":[{}]}}`, `"\u00e9"`, `-0`, `1.5e-7`, `true`, `null`, `{"":""}`, "\"\x7f\"",
		`{`, `[`, `[1`, `[1,]`, `[,1]`, `{"a"}`, `{"a":}`, `{"a":1,}`, `{a:1}`, `"`, `"\"`, `"\x"`, `"\u12"`, `"\u12g4"`, "\"\n\"",
		`01`, `1.`, `.5`, `-`, `1e`, `+1`, `tru`, `truex`, `1 2`, `{} x`, `'a'`, "\xef\xbb\xbf{}",
	} {
		if got, want := readValue([]byte(text)).there(), json.Valid([]byte(text)); got != want {
			t.Errorf("%q: read %t, want %t", text, got, want)
		}
	}
}

func TestCompactKeepsWhatIsWritten(t *testing.T) {
	v := readValue([]byte(`{ "a b" : [ 1.0 , "x \" [ y\\" ] , "a b" : 1E2 }`))
	if got, want := v.compact(), `{"a b":[1.0,"x \" [ y\\"],"a b":1E2}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if twice := v.repeated(); len(twice) != 1 || twice[0] != "a b" || v.get("a b").raw != "1E2" {
		t.Errorf("repeated %v, last %s", twice, v.get("a b").raw)
	}
}

func TestLargeBodyIsComparedByHash(t *testing.T) {
	// python3 -c 'import json,hashlib; c=json.dumps({"b":1,"a":"é"*3},sort_keys=True,separators=(",",":")); print(hashlib.sha256(c.encode()).hexdigest(),len(c))'
	want := readValue([]byte(`{"$sha": "1a19b8075f8d416be8cded5c59b91a74f468a963edd47ec19fb64e1515d49d97", "$canon_len": 32}`))
	if !same(want, readValue([]byte(`{"b": 1.0, "a": "ééé"}`))) {
		t.Error("the same body has another hash")
	}
	if same(want, readValue([]byte(`{"b": 1.0, "a": "éé"}`))) {
		t.Error("another body has the same hash")
	}
}

func TestDeepNestingIsRead(t *testing.T) {
	const depth = 10_000
	if !readValue([]byte(strings.Repeat("[", depth) + strings.Repeat("]", depth))).there() {
		t.Error("not read")
	}
}
