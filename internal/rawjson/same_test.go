package rawjson_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"example.com/turn/internal/rawjson"
)

func TestSame(t *testing.T) {
	for _, test := range []struct {
		name string
		a, b string
		same bool
	}{
		{"byte for byte", `{"a":[1,"x"]}`, `{"a":[1,"x"]}`, true},
		{"white space", `{"a":[1,"x"]}`, "\r\n{ \"a\" :\t[ 1 , \"x\" ] }", true},
		{"another order of members", `{"a":1,"b":{"c":2,"d":3}}`, `{"b":{"d":3,"c":2},"a":1}`, true},
		{"another order of elements", `[1,2]`, `[2,1]`, false},
		{"escapes", `"é/\n"`, `"\u00E9\/\u000a"`, true},
		{"escapes of a name", `{"é":1}`, `{"\u00e9":1}`, true},
		{"a name in capitals", `{"a":1}`, `{"A":1}`, false},
		{"a member more", `{"a":1}`, `{"a":1,"b":null}`, false},
		{"another member", `{"a":1,"b":null}`, `{"a":1,"c":null}`, false},
		{"an element more", `[1]`, `[1,1]`, false},
		{"nothing and nothing", `{}`, `[]`, false},
		{"null and nothing", `null`, `{}`, false},
		{"null and false", `null`, `false`, false},
		{"null and 0", `null`, `0`, false},
		{"true and 1", `true`, `1`, false},
		{"true and text", `true`, `"true"`, false},
		{"text and a number", `"1"`, `1`, false},
		{"a number and text", `1`, `"1"`, false},
		{"a list and an object", `[{}]`, `[[]]`, false},

		{"1 and 1.0", `1`, `1.0`, true},
		{"1.0 and 1", `1.0`, `1`, true},
		{"100 and 1E+2", `100`, `1E+2`, true},
		{"1 and 1.5", `1`, `1.5`, false},
		{"0.1 and 0.10", `0.1`, `1.0e-1`, true},
		{"0.1 and 0.2", `0.1`, `0.2`, false},
		{"-1 and 1", `-1`, `1`, false},
		{"0, -0 and -0.0", `[0,-0,-0.0,0.0]`, `[-0.0,0,0.0,-0]`, true},
		{"whole numbers beyond floats", `9007199254740993`, `9007199254740992`, false},
		{"large whole numbers", `18446744073709551616`, `18446744073709551616 `, true},
		{"a whole number and its nearest float", `9007199254740993`, `9007199254740993.0`, false},
		{"a float and the whole number that it is", `9007199254740993.0`, `9007199254740992`, true},
		{"floats that are one", `0.1`, `0.1000000000000000055`, true},
		{"past all floats", `1e400`, `1e500`, true},
		{"past all floats, of other signs", `1e400`, `-1e400`, false},
		{"past all floats, and whole", `1e400`, `1` + strings.Repeat("0", 400), false},
		{"below all floats", `1e-400`, `0`, true},

		{"a pair of surrogates", `"\ud83d\ude00"`, `"😀"`, true},
		{"lone surrogates", `"\ud800"`, `"\uD800"`, true},
		{"two lone surrogates", `"\ud800"`, `"\ud801"`, false},
		{"a lone surrogate and what decoders make of it", `"\ud800"`, "\"\uFFFD\"", false},
		{"lone surrogates in names", `{"\ud800":1}`, `{"\udfff":1}`, false},
		{"a backslash before what looks like one", `"\\ud800"`, `"\\ud801"`, false},
		{"a backslash before what looks like one, escaped", `"\\ud800"`, `"\u005cud800"`, true},
		{"the same text in a list", `["\\",1]`, `["\u005c",1]`, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, value := range []string{test.a, test.b} {
				if !rawjson.Valid([]byte(value)) {
					t.Fatalf("%s is not JSON", value)
				}
			}
			for _, pair := range [][2]string{{test.a, test.b}, {test.b, test.a}, {"[" + test.a + "]", "[" + test.b + "]"}, {`{"x":` + test.a + `}`, `{"x":` + test.b + `}`}} {
				if got := rawjson.Same([]byte(pair[0]), []byte(pair[1])); got != test.same {
					t.Errorf("%s and %s are the same: %t, want %t", pair[0], pair[1], got, test.same)
				}
			}
		})
	}
}

// As deep as this package takes a value, it is compared.
func TestSameLooksIntoTheDepth(t *testing.T) {
	const depth = 10_000
	value := func(inner string) []byte {
		return []byte(strings.Repeat("[", depth) + inner + strings.Repeat("]", depth))
	}
	if !rawjson.Valid(value("1")) || rawjson.Valid([]byte("["+string(value("1"))+"]")) {
		t.Fatalf("the depth is not %d", depth)
	}
	if rawjson.Same(value("1"), value("2")) || !rawjson.Same(value("1"), value("1.0")) {
		t.Error("values are not compared at their depth")
	}
}

// Spelled anew, a value is the same; with one number changed, it is another.
func TestSameOfAnyValue(t *testing.T) {
	leaf := rapid.OneOf(
		rapid.Map(rapid.Int64Range(-1<<53, 1<<53), func(n int64) any { return float64(n) }),
		rapid.Map(rapid.Float64Range(-1e300, 1e300), func(f float64) any { return f }),
		rapid.Map(rapid.StringN(0, 5, 20), func(s string) any { return s }),
		rapid.Just[any](nil), rapid.Just[any](true), rapid.Just[any](false),
	)
	list := rapid.Map(rapid.SliceOfN(leaf, 0, 4), func(l []any) any { return l })
	value := rapid.MapOfN(rapid.StringN(0, 3, 10), rapid.OneOf(leaf, list), 0, 6)
	rapid.Check(t, func(t *rapid.T) {
		v := value.Draw(t, "value")
		compact, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		indented, _ := json.MarshalIndent(v, " ", "\t")
		if !rawjson.Same(compact, indented) {
			t.Fatalf("%s and %s differ", compact, indented)
		}
		v["changed"] = "before"
		before, _ := json.Marshal(v)
		v["changed"] = "after"
		after, _ := json.Marshal(v)
		if rawjson.Same(before, after) || rawjson.Same(compact, after) && len(v) > 0 && !strings.Contains(string(compact), `"changed"`) {
			t.Fatalf("%s and %s are the same", before, after)
		}
	})
}

// Float writes JSON that is read as the same number.
func TestFloatIsReadAgain(t *testing.T) {
	write := func(f float64) string {
		var w rawjson.ObjectWriter
		w.Float("n", f)
		return string(w.End().Bytes())
	}
	for f, want := range map[float64]string{0: "0", 1: "1", -1.5: "-1.5", 0.1: "0.1", 1e21: "1e+21", 1e-7: "1e-07", 2.0 / 3: "0.6666666666666666", math.MaxFloat64: "1.7976931348623157e+308", 5e-324: "5e-324"} {
		if got, want := write(f), `{"n":`+want+`}`; got != want {
			t.Errorf("%g is written as %s, want %s", f, got, want)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		f := rapid.Float64().Draw(t, "f")
		text := write(f)
		var again struct{ N float64 }
		if err := json.Unmarshal([]byte(text), &again); err != nil || !rawjson.Valid([]byte(text)) || math.Float64bits(again.N) != math.Float64bits(f) {
			t.Fatalf("%v is written as %s and read as %v, %v", f, text, again.N, err)
		}
	})
}

// WriteLineTo tells how far it came.
func TestWriteLineToStopsAtAnError(t *testing.T) {
	full := fmt.Errorf("disk full")
	for left := range 8 {
		n, err := rawjson.Body{[]byte("ab\r\nc"), nil, []byte("d\ne")}.WriteLineTo(&limitedWriter{left: left, err: full})
		want := error(nil)
		if left < len("abcde\n") {
			want = full
		}
		if n != int64(min(left, len("abcde\n"))) || err != want {
			t.Errorf("with room for %d: %d, %v, want %v", left, n, err, want)
		}
	}
	once := &failingOnce{err: full}
	if n, err := (rawjson.Body{[]byte("ab"), []byte("cd")}).WriteLineTo(once); n != 2 || err != full || once.written != "ab" {
		t.Errorf("a write that failed is passed over: %d, %v, %q", n, err, once.written)
	}
}

// failingOnce is a writer whose second write fails.
type failingOnce struct {
	err     error
	writes  int
	written string
}

func (w *failingOnce) Write(p []byte) (int, error) {
	if w.writes++; w.writes == 2 {
		return 0, w.err
	}
	w.written += string(p)
	return len(p), nil
}

// What is long is compared as it is spelled: to decode it would take a hundred times
// its memory.
func TestSameOfLongValuesIsThatOfTheirText(t *testing.T) {
	long := func(n int) []byte { return []byte("[" + strings.Repeat("1,", n/2-1) + "1]") }
	spaced := func(value []byte) []byte { return append([]byte("[ "), value[1:]...) }
	const half = 2 << 20
	if short := long(half - 100); !rawjson.Same(short, spaced(short)) {
		t.Error("two values of four mebibytes together are not compared as values")
	}
	if value := long(half + 100); !rawjson.Same(value, slices.Clone(value)) || rawjson.Same(value, spaced(value)) {
		t.Error("two values of more are not compared as texts")
	}
}
