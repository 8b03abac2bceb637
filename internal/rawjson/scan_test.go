package rawjson_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/rawjson"
)

// texts is the seed corpus of the fuzz tests: every token, cut short and wrong
// in each way that is near it, and strings around the eight bytes that are
// looked at together.
var texts = []string{
	``, ` `, "\x00", "\t\r\n 1 \t\r\n", "\v1", "\ufeff1", "1\x00", `1 2`, `1,`, `]`, `}`, `,`, `:`,
	`null`, `true`, `false`, `nul`, `nulll`, `True`, `NaN`, `Infinity`, `-Infinity`, `undefined`, `'a'`, `// 1`,
	`0`, `-0`, `-`, `+1`, `01`, `-01`, `1.`, `.5`, `1.5`, `1e`, `1e+`, `1E-07`, `1e+5.`, `0x10`, `1_000`, `18446744073709551616`, `1e999`, `--1`, `0.0e0`,
	`""`, `"`, `"\"`, `"\\"`, `"\/\b\f\n\r\t"`, `"\x41"`, `"\v"`, `"\0"`, `"\'"`, `"\u00e9"`, `"\u00E9"`, `"\u00g0"`, `"\u00`, `"\u`, `"\`,
	`"\ud800"`, `"\udc00"`, `"\ud83d\ude00"`, `"\ud83d\u0041"`, `"\ud83d\`, `"<>& ` + "\u2028\u2029\x7f" + `"`,
	"\"\t\"", "\"\n\"", "\"\x1f\"", "\"\x00\"", "\"\xff\"", "\"\xc3\"", "\"\xc3\xa9\"", "\"\xed\xa0\x80\"", "\"\xf4\x90\x80\x80\"", "\"\xc0\x80\"", "\xc3\xa9",
	`"1234567"`, `"12345678"`, `"123456789"`, `"1234567`, `"12345678`, "\"1234567\x1f\"", "\"12345678\x1f\"", "\"1234\x1f678\"", "\"!!!!!!! \\\"é\"", "\"\x20\x1f\x22\x21\x5c\x5b\x7f\x80\"",
	`"\u00/0"`, `"\u00:0"`, `"\u00@0"`, `"\u00G0"`, `"\u00` + "`" + `0"`, `"\u00g0"`, `"\u009f\uafAF"`, `"\ud83d_ude00"`, `"\ud83d\nde00"`,
	`1e+5`, `1E+5`, `1e,5`, `[1:2]`, `[nulL]`, `[trux]`, `[falsy]`,
	`[]`, `[ ]`, `[1]`, `[1,2]`, `[1 2]`, `[1,]`, `[,1]`, `[1`, `[`, `[}`, `[[]`, `[[[]]]`, `[1]]`, `[null,true,"a",{}]`, ` [ 1 , [ ] , { } ] `,
	`{}`, `{ }`, `{"a":1}`, `{"a":1,}`, `{,"a":1}`, `{"a"}`, `{"a":}`, `{"a":1`, `{"a" 1}`, `{a:1}`, `{1:1}`, `{"a":1]`, `{"a":1 "b":2}`, `{null:1}`, ` { "a" : { "b" : [ { } ] } , "a" : 2 } `,
	`{"a":1,"A":2,"\u0061":3,"":4}`, `{"\ud800":1,"\ud801":2}`, "{\"\xff\":1}", `{"a":NaN}`, `[Infinity]`,
}

func FuzzValid(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		got, want := rawjson.Valid(data), json.Valid(data) && utf8.Valid(data)
		if got != want {
			t.Fatalf("Valid(%q) is %v, want %v (Check says: %v)", data, got, want, rawjson.Check(data))
		}
		var syntax *rawjson.SyntaxError
		if err := rawjson.Check(data); err != nil && (!errors.As(err, &syntax) || syntax.Offset < 0 || syntax.Offset > len(data)) {
			t.Fatalf("Check(%q) is %#v, want a SyntaxError within the text", data, err)
		}
	})
}

func TestCheckSaysWhereAndWhat(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"nothing", "", "not JSON: the text ends where a value should be at byte 0"},
		{"only space", "  ", "not JSON: the text ends where a value should be at byte 2"},
		{"a second value", "1 2", `not JSON: "2" where the end of the text should be at byte 2`},
		{"Python's NaN", `{"reward": NaN}`, `not JSON: "NaN" where a value should be at byte 11`},
		{"Python's infinity", `[Infinity]`, `not JSON: "Infinity" where a value should be at byte 1`},
		{"the other one", `-Infinity`, `not JSON: "Infinity" where a digit should be at byte 1`},
		{"no more of a word than those", `NaNcy`, `not JSON: "NaN" where a value should be at byte 0`},
		{"nor of another", `None`, `not JSON: "N" where a value should be at byte 0`},
		{"a cut object", `{"a":1`, "not JSON: the text ends where a comma or a closing bracket should be at byte 6"},
		{"a comma too many", `{"a":1,}`, `not JSON: "}" where a name in quotes should be at byte 7`},
		{"no colon", `{"a" 1}`, `not JSON: "1" where a colon should be at byte 5`},
		{"a wrong bracket", `[1}`, `not JSON: "}" where a comma or a closing bracket should be at byte 2`},
		{"an open string", `["ab`, "not JSON: a string without its closing quote at byte 4"},
		{"a foreign escape", `"ab\x41"`, "not JSON: an escape that JSON does not have at byte 3"},
		{"an open name", `{"ab`, "not JSON: a string without its closing quote at byte 4"},
		{"an end right behind an escape", `"ab\n`, "not JSON: a string without its closing quote at byte 5"},
		{"an escape that is cut off", `"ab\`, "not JSON: an escape that JSON does not have at byte 3"},
		{"a raw tab", "\"ab\tc\"", "not JSON: a control character in a string at byte 3"},
		{"not UTF-8", "\"abcdefghij\xffk\"", "not JSON: text that is not UTF-8 at byte 11"},
		{"a leading zero", "012", `not JSON: "1" where the end of the text should be at byte 1`},
		{"no exponent", "1e", "not JSON: the text ends where a digit should be at byte 2"},
		{"a BOM", "\ufeff1", `not JSON: "\xef" where a value should be at byte 0`},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := rawjson.Check([]byte(test.text))
			if err == nil {
				t.Fatalf("Check(%q) finds nothing wrong", test.text)
			}
			if diff := cmp.Diff(test.want, err.Error()); diff != "" {
				t.Errorf("Check(%q) (-want +got):\n%s", test.text, diff)
			}
		})
	}
}

// A text that ends is not read past its end, though its buffer may go on with
// what would complete it.
func TestCheckKeepsWithinTheText(t *testing.T) {
	for _, whole := range []string{`"\u0041"`, "true", "false", "null", `"12345678"`, `"😀"`, "[1]", `{"a":1}`} {
		for n := range len(whole) {
			text := []byte(whole)[:n]
			if rawjson.Valid(text) || rawjson.Valid(slices.Clip(text)) {
				t.Errorf("the first %d bytes of %s are taken for JSON", n, whole)
			}
		}
	}
}

// Eight bytes are looked at together: whatever is wrong in a string is found at
// each place among them.
func TestCheckFindsAWrongByteAtEachPlace(t *testing.T) {
	wrong := []byte{0x80, 0xBF, 0xC0, 0xFF}
	for c := range byte(' ') {
		wrong = append(wrong, c)
	}
	const long = "abcdefghijklmnopqrstuvwxyz !#[]^~\x7f"
	for _, c := range wrong {
		for at := range len(long) {
			text := `"` + long[:at] + string([]byte{c}) + long[at:] + `"`
			var syntax *rawjson.SyntaxError
			if err := rawjson.Check([]byte(text)); !errors.As(err, &syntax) || syntax.Offset != at+1 {
				t.Errorf("Check(%q) says %v, want a fault at byte %d", text, err, at+1)
			}
		}
	}
}

func TestNestingEndsAtTheLimit(t *testing.T) {
	nested := func(open, inner, end string, depth int) []byte {
		return []byte(strings.Repeat(open, depth) + inner + strings.Repeat(end, depth))
	}
	for _, test := range []struct {
		name string
		text []byte
		want bool
	}{
		{"arrays at the limit", nested("[", "", "]", rawjson.MaxDepth), true},
		{"arrays past it", nested("[", "", "]", rawjson.MaxDepth+1), false},
		{"objects at the limit", nested(`{"a":`, "1", "}", rawjson.MaxDepth), true},
		{"objects past it", nested(`{"a":`, "1", "}", rawjson.MaxDepth+1), false},
		{"side by side", []byte("[" + strings.Repeat("[],", rawjson.MaxDepth) + "{}]"), true},
		{"megabytes of brackets", bytes.Repeat([]byte("["), 4<<20), false},
		{"megabytes of objects", bytes.Repeat([]byte(`{"":`), 1<<20), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := rawjson.Valid(test.text); got != test.want {
				t.Errorf("Valid is %v, want %v", got, test.want)
			}
			if json.Valid(test.text) != test.want {
				t.Errorf("encoding/json disagrees")
			}
			if test.text[0] != '{' {
				return
			}
			if _, err := rawjson.ParseObject(test.text); (err == nil) != test.want {
				t.Errorf("ParseObject says %v, want success to be %v", err, test.want)
			}
		})
	}
}
