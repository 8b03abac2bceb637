package rawjson_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/internal/rawjson"
)

// member is a rawjson.Member that cmp prints as text.
type member struct{ Name, Key, Value string }

func members(object rawjson.Object) []member {
	var list []member
	for _, m := range object {
		list = append(list, member{m.Name, string(m.Key), string(m.Value)})
	}
	return list
}

func mustParse(t *testing.T, text string) rawjson.Object {
	t.Helper()
	object, err := rawjson.ParseObject([]byte(text))
	if err != nil {
		t.Fatalf("ParseObject(%q): %v", text, err)
	}
	return object
}

func TestParseObjectKeepsMembersAsTheyCame(t *testing.T) {
	for _, test := range []struct {
		name, text string
		want       []member
	}{
		{"empty", " { } ", nil},
		{
			"in their order", `{"b":1,"a":2,"c":3}`,
			[]member{{"b", `"b"`, `1`}, {"a", `"a"`, `2`}, {"c", `"c"`, `3`}},
		},
		{
			"white space goes from around a value, not from within", "\t{ \"a\"\r\n:\n [ 1 , { } ] \n,\"b\" : \"x y\" }\n",
			[]member{{"a", `"a"`, `[ 1 , { } ]`}, {"b", `"b"`, `"x y"`}},
		},
		{
			"the spelling of numbers and strings", `{"n":12345678901234567890.10e-07,"s":"\u003c\/<"}`,
			[]member{{"n", `"n"`, `12345678901234567890.10e-07`}, {"s", `"s"`, `"\u003c\/<"`}},
		},
		{
			"a name again: its last value at its first place", `{"a":1,"b":2,"a":3,"c":4,"a":{"x":5}}`,
			[]member{{"a", `"a"`, `{"x":5}`}, {"b", `"b"`, `2`}, {"c", `"c"`, `4`}},
		},
		{
			"names that are equal once unescaped", `{"\u0061\/":1,"a/":2}`,
			[]member{{"a/", `"\u0061\/"`, `2`}},
		},
		{
			"a pair of surrogates is its character", `{"\ud83d\ude00":1,"😀":2}`,
			[]member{{"😀", `"\ud83d\ude00"`, `2`}},
		},
		{
			"names that differ in case", `{"a":1,"A":2}`,
			[]member{{"a", `"a"`, `1`}, {"A", `"A"`, `2`}},
		},
		{
			"lone surrogates stay two names", `{"\ud800":1,"\ud801":2,"\uDC00":3,"�":4}`,
			[]member{{"\xed\xa0\x80", `"\ud800"`, `1`}, {"\xed\xa0\x81", `"\ud801"`, `2`}, {"\xed\xb0\x80", `"\uDC00"`, `3`}, {"\ufffd", `"�"`, `4`}},
		},
		{
			"a high surrogate before another escape", `{"\ud800\ud83d\ude00":1,"\ud800\u0041":2}`,
			[]member{{"\xed\xa0\x80😀", `"\ud800\ud83d\ude00"`, `1`}, {"\xed\xa0\x80A", `"\ud800\u0041"`, `2`}},
		},
		{"an empty name", `{"":null}`, []member{{"", `""`, `null`}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, members(mustParse(t, test.text))); diff != "" {
				t.Errorf("ParseObject(%q) (-want +got):\n%s", test.text, diff)
			}
		})
	}
}

func TestParseObjectRefuses(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{``, `not JSON: the text ends where a value should be at byte 0`},
		{`{"a":1} x`, `not JSON: "x" where the end of the text should be at byte 8`},
		{`{"a":1 "b"`, `not JSON: "\"" where a comma or a closing bracket should be at byte 7`},
		{`{"a":[1,}`, `not JSON: "}" where a value should be at byte 8`},
		{`[1,2`, `not JSON: the text ends where a comma or a closing bracket should be at byte 4`},
		{` [1]`, `want an object, got an array`},
		{` "a"`, `want an object, got a string`},
		{`-1`, `want an object, got a number`},
		{`true`, `want an object, got a boolean`},
		{`null`, `want an object, got null`},
	} {
		_, err := rawjson.ParseObject([]byte(test.text))
		if err == nil || err.Error() != test.want {
			t.Errorf("ParseObject(%q) says %v, want %s", test.text, err, test.want)
		}
		var kind *rawjson.TypeError
		if valid := json.Valid([]byte(test.text)); errors.As(err, &kind) != valid {
			t.Errorf("ParseObject(%q) is a %T, but that the text is JSON is %v", test.text, err, valid)
		}
	}
}

func TestParseObjectReturnsSlicesOfTheInput(t *testing.T) {
	data := []byte(` {"\u0061": [1,2], "b": "x"}`)
	object, err := rawjson.ParseObject(data)
	if err != nil {
		t.Fatal(err)
	}
	for i, at := range []struct{ key, value int }{{2, 12}, {19, 24}} {
		if &object[i].Key[0] != &data[at.key] || &object[i].Value[0] != &data[at.value] {
			t.Errorf("member %d (%s) is a copy", i, object[i].Key)
		}
	}
}

func wideObject(n int) []byte {
	text := []byte(`{"n0":0`)
	for i := 1; i < n; i++ {
		text = fmt.Appendf(text, `,"n%d":%d`, i, i)
	}
	return append(text, '}')
}

func TestParseObjectFindsRepeatedNamesInWideObjects(t *testing.T) {
	const n = 1000
	once := string(wideObject(n))
	twice := once[:len(once)-1] + `,"n3":"three","n998":"later","new":"last"}`
	want := members(mustParse(t, once))
	if len(want) != n {
		t.Fatalf("%d members, want %d", len(want), n)
	}
	want[3].Value, want[998].Value = `"three"`, `"later"`
	want = append(want, member{"new", `"new"`, `"last"`})
	if diff := cmp.Diff(want, members(mustParse(t, twice))); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseObjectTakesLinearTime(t *testing.T) {
	// It takes some 50 ms, half a minute when every name is compared with every
	// other.
	begin := time.Now()
	object := mustParse(t, string(wideObject(100_000)))
	if took := time.Since(begin); took > 5*time.Second || len(object) != 100_000 {
		t.Errorf("reading %d members took %s", len(object), took)
	}
}

func TestGetAndPresent(t *testing.T) {
	object := mustParse(t, `{"a":1,"none":null}`)
	for _, test := range []struct {
		name    string
		got     string
		there   bool
		present string
	}{{"a", "1", true, "1"}, {"none", "null", true, ""}, {"A", "", false, ""}} {
		got, there := object.Get(test.name)
		if string(got) != test.got || there != test.there {
			t.Errorf("Get(%q) is %q, %v, want %q, %v", test.name, got, there, test.got, test.there)
		}
		if present := object.Present(test.name); string(present) != test.present || (present == nil) != (test.present == "") {
			t.Errorf("Present(%q) is %q, want %q", test.name, present, test.present)
		}
	}
	if got := string(rawjson.OrNull(nil)) + string(rawjson.OrNull([]byte("0"))); got != "null0" {
		t.Errorf("OrNull gives %s", got)
	}
}

func TestTextOfAMember(t *testing.T) {
	object := mustParse(t, `{"a":"\u0041\n","number":1,"none":null}`)
	for name, want := range map[string]string{"a": "A\n", "number": "", "none": "", "A": ""} {
		if got := object.Text(name); got != want {
			t.Errorf("Text(%q) is %q, want %q", name, got, want)
		}
	}
}

func TestValuesAreToldApart(t *testing.T) {
	for value, want := range map[string]string{
		`{}`: "an object", `[]`: "an array", `""`: "a string", `-1`: "a number", `0`: "a number", `9e9`: "a number",
		`true`: "a boolean", `false`: "a boolean", `null`: "null", ``: "nothing", " \n{}": "an object",
	} {
		if got := rawjson.Describe([]byte(value)); got != want {
			t.Errorf("Describe(%q) is %s, want %s", value, got, want)
		}
		if value != "" && value[0] == ' ' {
			continue // the functions below take a value without space around it
		}
		v := []byte(value)
		got := map[string]bool{
			"an object": rawjson.IsObject(v), "an array": rawjson.IsArray(v), "a string": rawjson.IsString(v),
			"a number": rawjson.IsNumber(v), "null": rawjson.IsNull(v),
		}
		for kind, is := range got {
			if is != (kind == want) {
				t.Errorf("%q is %s: %v", value, kind, is)
			}
		}
	}
}

func TestElements(t *testing.T) {
	for _, test := range []struct {
		array string
		want  []string
	}{
		{`[]`, nil},
		{"[ \n]", nil},
		{`[1]`, []string{`1`}},
		{` [ 1 , "a]" , [ 2,3 ] ,{"b":[ ]}, null ] `[1:], []string{`1`, `"a]"`, `[ 2,3 ]`, `{"b":[ ]}`, `null`}},
		{`{"a":1}`, nil},
		{`"a,{"`, nil},
		{``, nil},
	} {
		var got []string
		for _, element := range rawjson.FirstElements([]byte(test.array), 10) {
			got = append(got, string(element))
		}
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("FirstElements(%q, 10) (-want +got):\n%s", test.array, diff)
		}
	}
}

// FuzzParts compares what a text is taken apart into with what encoding/json
// makes of it.
func FuzzParts(f *testing.F) {
	for _, text := range texts {
		f.Add([]byte(text))
	}
	wide := wideObject(20)
	f.Add(append(wide[:len(wide)-1], `,"n3":true,"\u006e19":[]}`...))
	f.Fuzz(func(t *testing.T, data []byte) {
		object, err := rawjson.ParseObject(data)
		if isObject := rawjson.Valid(data) && rawjson.Describe(data) == "an object"; (err == nil) != isObject {
			t.Fatalf("ParseObject(%q) says %v, but that it is an object is %v", data, err, isObject)
		}
		var list []json.RawMessage
		if rawjson.IsArray(data) && rawjson.Valid(data) {
			if err := json.Unmarshal(data, &list); err != nil {
				t.Fatal(err)
			}
			for i, element := range rawjson.Elements(data) {
				if i >= len(list) || string(element) != string(list[i]) {
					t.Fatalf("Elements(%q)[%d] is %q, want one of %q", data, i, element, list)
				}
			}
			if got := len(rawjson.Elements(data)); got != len(list) {
				t.Fatalf("Elements(%q) are %d, want %d", data, got, len(list))
			}
		}
		if err != nil {
			return
		}
		members, err := rawjson.Members(data)
		if diff := cmp.Diff(object, members); diff != "" || err != nil {
			t.Fatalf("Members(%q) says %v and differs from ParseObject (-want +got):\n%s", data, err, diff)
		}
		for _, m := range object {
			if value, there := rawjson.Find(data, m.Name); !there || string(value) != string(m.Value) {
				t.Fatalf("Find(%q, %q) finds %q (%v), want %q", data, m.Name, value, there, m.Value)
			}
		}
		want := map[string]json.RawMessage{}
		if err := json.Unmarshal(data, &want); err != nil {
			t.Fatal(err)
		}
		got := map[string]json.RawMessage{}
		for _, m := range object {
			if _, twice := got[m.Name]; twice {
				t.Fatalf("ParseObject(%q) has %q twice", data, m.Name)
			}
			if name, _ := rawjson.Text(m.Key); name != m.Name {
				t.Fatalf("the key %s reads %q, its name %q", m.Key, name, m.Name)
			}
			if !utf8.ValidString(m.Name) {
				return // encoding/json takes such names for one
			}
			got[m.Name] = m.Value
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("ParseObject(%q) (-want +got):\n%s", data, diff)
		}
	})
}

// What is within a valid value is found wherever quotes and brackets stand in its texts,
// at whatever distance from each other.
func TestPartsAreFoundBetweenQuotesAndBrackets(t *testing.T) {
	for pad := range 20 {
		fill := strings.Repeat("x", pad)
		for _, inner := range []string{
			`"` + fill + `\""`, `"` + fill + `\\"`, `"\\\"` + fill + `}"`, `{"` + fill + `}":["]",{"a":"\\"}]}`,
			`[[],{},[{}],"` + fill + `[{"]`, ` [ 1 , -2.5e+10 , null ] `, "1234567890" + strings.Repeat("0", pad), `true`,
		} {
			text := []byte(`{ "` + fill + `" : ` + inner + ` ,"s\u0074op":"no","last":` + inner + `,"stop" : 7}`)
			object, err := rawjson.ParseObject(text)
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			members, err := rawjson.Members(text)
			if diff := cmp.Diff(object, members); diff != "" || err != nil {
				t.Errorf("Members(%s): %v (-want +got):\n%s", text, err, diff)
			}
			if stop, there := rawjson.Find(text, "stop"); !there || string(stop) != "7" {
				t.Errorf("Find(%s) finds %q, want the last of that name", text, stop)
			}
			if value, there := rawjson.Find(text, "none"); there {
				t.Errorf("Find(%s) finds %q where there is none", text, value)
			}
		}
	}
}

func TestMembersAreBounded(t *testing.T) {
	wide := wideObject(rawjson.MaxNames + 1)
	if _, err := rawjson.Members(wide); err == nil {
		t.Error("more names than there may be were taken apart")
	}
	if members, err := rawjson.Members(wideObject(1000)); err != nil || len(members) != 1000 {
		t.Errorf("%d members, %v", len(members), err)
	}
}

func ExampleParseObject() {
	object, err := rawjson.ParseObject([]byte(`{"reward": 1.0, "seed": 18446744073709551616}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, m := range object {
		fmt.Println(strconv.Quote(m.Name), string(m.Value))
	}
	// Output:
	// "reward" 1.0
	// "seed" 18446744073709551616
}

func TestIsEmpty(t *testing.T) {
	for value, want := range map[string]bool{
		`{}`: true, `[]`: true, `""`: true, "{ \n}": true, "[\t ]": true,
		`{"a":1}`: false, `[0]`: false, `" "`: false, `0`: false, `null`: false, `false`: false, ``: false,
	} {
		if got := rawjson.IsEmpty([]byte(value)); got != want {
			t.Errorf("IsEmpty(%s) is %t, want %t", value, got, want)
		}
	}
}

// An object is taken apart up to a million names.
func TestAnObjectOfTooManyNamesIsRefused(t *testing.T) {
	object := func(names int) []byte {
		text := []byte(`{"":0`)
		for i := range names - 1 {
			text = append(strconv.AppendInt(append(text, `,"`...), int64(i), 10), `":0`...)
		}
		return append(text, '}')
	}
	_, err := rawjson.ParseObject(object(rawjson.MaxNames + 1))
	var syntax *rawjson.SyntaxError
	if !errors.As(err, &syntax) || syntax.Problem != "an object of more than 1000000 names" {
		t.Errorf("one name more: %v", err)
	}
}

func TestFirstElements(t *testing.T) {
	for n, want := range []string{"[]", "[1]", "[1 [2,3]]", "[1 [2,3] {}]", "[1 [2,3] {}]"} {
		if got := fmt.Sprintf("%s", rawjson.FirstElements([]byte(`[1, [2,3] ,{}]`), n)); got != want {
			t.Errorf("the first %d are %s, want %s", n, got, want)
		}
	}
}
