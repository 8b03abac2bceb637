package requests_test

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/failures"
	"example.com/turn/servers/requests"
)

func TestFieldsReadWhatIsThere(t *testing.T) {
	fields := requests.Read([]byte(`{"text":"Tromsø","whole":2.0,"none":null,"flag":true,"number":-1.5e1,
		"object":{"a": 1.0},"list":[{"a":"x"},{"a":"y"}],"array":[1, 2]}`), "body")
	var list []string
	for _, element := range fields.List("list") {
		list = append(list, element.Text("a"))
	}
	got := map[string]any{
		"text":     fields.Text("text"),
		"whole":    fields.Whole("whole"),
		"no whole": fields.Whole("missing"),
		"flag":     fields.Bool("flag"),
		"number":   fields.Number("number"),
		"raw":      string(fields.Raw("object")),
		"nested":   string(fields.Object("object").JSON()),
		"array":    string(fields.Array("array")),
		"list":     list,
		"has":      fields.Has("text") && !fields.Has("none") && !fields.Has("missing"),
		"rest":     string(fields.Rest("text", "list", "array", "object", "missing")),
	}
	want := map[string]any{
		"text":     "Tromsø",
		"whole":    int64(2),
		"no whole": int64(0),
		"flag":     true,
		"number":   -15.0,
		"raw":      `{"a": 1.0}`,
		"nested":   `{"a": 1.0}`,
		"array":    `[1, 2]`,
		"list":     []string{"x", "y"},
		"has":      true,
		"rest":     `{"whole":2.0,"none":null,"flag":true,"number":-1.5e1}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read (-want +got):\n%s", diff)
	}
	if err := fields.Err(); err != nil {
		t.Errorf("faults: %v", err)
	}
}

func TestFieldsFindEveryFault(t *testing.T) {
	for _, test := range []struct {
		name string
		body string
		read func(*requests.Fields)
		want string // the answer's detail
	}{
		{
			"missing", `{}`, func(f *requests.Fields) { f.Text("city") },
			`[{"type":"missing","loc":["body","city"],"msg":"Field required"}]`,
		},
		{
			"no text", `{"city":5}`, func(f *requests.Fields) { f.Text("city") },
			`[{"type":"string_type","loc":["body","city"],"msg":"Input should be a valid string","input":5}]`,
		},
		{
			"no text, too long to repeat", `{"city":` + strings.Repeat("5", 200) + `}`, func(f *requests.Fields) { f.Text("city") },
			`[{"type":"string_type","loc":["body","city"],"msg":"Input should be a valid string"}]`,
		},
		{
			"an empty text", `{"city":""}`, func(f *requests.Fields) { f.NonEmpty("city") },
			`[{"type":"string_too_short","loc":["body","city"],"msg":"String should have at least 1 character"}]`,
		},
		{
			"an empty text that is none", `{"city":null}`, func(f *requests.Fields) { f.NonEmpty("city") },
			`[{"type":"string_type","loc":["body","city"],"msg":"Input should be a valid string","input":null}]`,
		},
		{
			"no boolean", `{"flag":1}`, func(f *requests.Fields) { f.Bool("flag") },
			`[{"type":"bool_type","loc":["body","flag"],"msg":"Input should be a valid boolean","input":1}]`,
		},
		{
			"no number", `{"n":"1"}`, func(f *requests.Fields) { f.Number("n") },
			`[{"type":"float_type","loc":["body","n"],"msg":"Input should be a valid number","input":"1"}]`,
		},
		{
			"a number that no float holds", `{"n":1e400}`, func(f *requests.Fields) { f.Number("n") },
			`[{"type":"float_type","loc":["body","n"],"msg":"Input should be a valid number","input":1e400}]`,
		},
		{
			"not whole", `{"n":1.5}`, func(f *requests.Fields) { f.Whole("n") },
			`[{"type":"int_type","loc":["body","n"],"msg":"Input should be a valid integer","input":1.5}]`,
		},
		{
			"whole as text", `{"n":"2"}`, func(f *requests.Fields) { f.Whole("n") },
			`[{"type":"int_type","loc":["body","n"],"msg":"Input should be a valid integer","input":"2"}]`,
		},
		{
			"whole, and more than an int64 holds", `{"n":1e30}`, func(f *requests.Fields) { f.Whole("n") },
			`[{"type":"int_type","loc":["body","n"],"msg":"Input should be a valid integer","input":1e30}]`,
		},
		{
			"below zero", `{"n":-1}`, func(f *requests.Fields) { f.Whole("n") },
			`[{"type":"greater_than_equal","loc":["body","n"],"msg":"Input should be greater than or equal to 0","input":-1}]`,
		},
		{
			"no object", `{"o":[]}`, func(f *requests.Fields) { f.Raw("o") },
			`[{"type":"dict_type","loc":["body","o"],"msg":"Input should be a valid dictionary"}]`,
		},
		{
			"no array", `{"a":{}}`, func(f *requests.Fields) { f.Array("a") },
			`[{"type":"list_type","loc":["body","a"],"msg":"Input should be a valid list"}]`,
		},
		{
			"no list", `{"a":"x"}`, func(f *requests.Fields) { f.List("a") },
			`[{"type":"list_type","loc":["body","a"],"msg":"Input should be a valid list","input":"x"}]`,
		},
		{
			"within an object", `{"o":{"p":{}}}`, func(f *requests.Fields) { f.Object("o").Object("p").Text("q") },
			`[{"type":"missing","loc":["body","o","p","q"],"msg":"Field required"}]`,
		},
		{
			"within an object that is none: said once", `{"o":7}`, func(f *requests.Fields) { f.Object("o").NonEmpty("q") },
			`[{"type":"dict_type","loc":["body","o"],"msg":"Input should be a valid dictionary","input":7}]`,
		},
		{
			"within an object that is missing: said once", `{}`, func(f *requests.Fields) { f.Object("o").NonEmpty("q") },
			`[{"type":"missing","loc":["body","o"],"msg":"Field required"}]`,
		},
		{
			"within a list", `{"l":[{"a":"x"},{}]}`, func(f *requests.Fields) {
				for _, element := range f.List("l") {
					element.Text("a")
				}
			},
			`[{"type":"missing","loc":["body","l",1,"a"],"msg":"Field required"}]`,
		},
		{
			"a stranger", `{"city":"Oslo","ciyt":"x"}`, func(f *requests.Fields) { f.Only("city") },
			`[{"type":"extra_forbidden","loc":["body","ciyt"],"msg":"Extra inputs are not permitted"}]`,
		},
		{
			"all at once", `{"a":1}`, func(f *requests.Fields) { f.Text("a"); f.Text("b"); f.Only() },
			`[{"type":"string_type","loc":["body","a"],"msg":"Input should be a valid string","input":1},` +
				`{"type":"missing","loc":["body","b"],"msg":"Field required"},` +
				`{"type":"extra_forbidden","loc":["body","a"],"msg":"Extra inputs are not permitted"}]`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			fields := requests.Read([]byte(test.body), "body")
			test.read(fields)
			var invalid requests.Invalid
			if !errors.As(fields.Err(), &invalid) {
				t.Fatalf("got %v, want faults", fields.Err())
			}
			if diff := cmp.Diff(test.want, string(invalid.AppendJSON(nil))); diff != "" {
				t.Errorf("detail (-want +got):\n%s", diff)
			}
		})
	}
}

// An answer lists a hundred faults and counts the others, however many a body has.
func TestFaultsAreListedUpToAHundred(t *testing.T) {
	const more = `{"type":"value_error","loc":["body"],"msg":"left out: %d more"}]`
	for _, test := range []struct {
		faults, listed int
		end            string
	}{
		{99, 99, `{"type":"string_too_short","loc":["body","l",98,"a"],"msg":"String should have at least 1 character"}]`},
		{100, 100, `{"type":"string_too_short","loc":["body","l",99,"a"],"msg":"String should have at least 1 character"}]`},
		{101, 101, fmt.Sprintf(more, 1)},
		{100_000, 101, fmt.Sprintf(more, 99_900)},
	} {
		fields := requests.Read([]byte(`{"l":[{"a":""}`+strings.Repeat(`,{"a":""}`, test.faults-1)+`]}`), "body")
		for _, element := range fields.List("l") {
			element.NonEmpty("a")
		}
		for range 2 { // asked again it says the same
			var invalid requests.Invalid
			if !errors.As(fields.Err(), &invalid) {
				t.Fatalf("got %v, want faults", fields.Err())
			}
			if answer := string(invalid.AppendJSON(nil)); len(invalid) != test.listed || !strings.HasSuffix(answer, test.end) {
				t.Errorf("%d faults: %d are listed, the last as %s; want %d and %s", test.faults, len(invalid), answer[max(0, len(answer)-100):], test.listed, test.end)
			}
		}
	}
}

// A fault that is left out is counted once: a value that is no text is not an empty
// one besides.
func TestFaultsThatAreLeftOutAreCountedOnce(t *testing.T) {
	fields := requests.Read([]byte(`{"l":[5`+strings.Repeat(`,5`, 99)+`],"a":7,"b":"","c":[]}`), "body")
	fields.List("l")
	fields.NonEmpty("a")
	fields.NonEmpty("b")
	fields.Object("c").NonEmpty("d")
	var invalid requests.Invalid
	if !errors.As(fields.Err(), &invalid) || len(invalid) != 101 || invalid[100].Msg != "left out: 3 more" {
		t.Errorf("got %d faults, the last %v; want 101, the last counting 3", len(invalid), invalid[len(invalid)-1])
	}
}

// The names and the words of a body come into its answer only so far.
func TestFaultsRepeatNoLongNames(t *testing.T) {
	long := strings.Repeat("é", 1<<20)
	fields := requests.Read([]byte(`{"`+long+`":1,"x`+long+`":2,"h":{}}`), "body")
	fields.Only("h")
	fields.Fault("h", "dict_type", "no such header: "+long)
	answer := string(fields.Err().(requests.Invalid).AppendJSON(nil))
	for _, want := range []string{
		`["body","` + strings.Repeat("é", 250) + `…"]`,
		`["body","x` + strings.Repeat("é", 249) + `…"]`, // not within a character
		`"no such header: ` + strings.Repeat("é", 242) + `…"`,
	} {
		if !strings.Contains(answer, want) {
			t.Errorf("the answer lacks %s", want)
		}
	}
	if len(answer) > 2500 {
		t.Errorf("the answer has %d bytes", len(answer))
	}
}

func TestFaultsReadAsText(t *testing.T) {
	err := requests.Invalid{
		{Type: "missing", Loc: []any{"body", "l", 1, "a"}, Msg: "Field required"},
		{Type: "value_error", Loc: []any{"body"}, Msg: "no"},
	}
	if want := "body.l.1.a: Field required; body: no"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}

func TestARefusalHasAReason(t *testing.T) {
	cause := errors.New("the disk is full")
	for _, test := range []struct {
		refusal *requests.Refusal
		want    string
	}{
		{requests.Refuse(http.StatusConflict, "session %d: %w", 1, cause), "session 1: the disk is full"},
		{requests.RefuseAs(0, failures.SessionLost, "gone"), "gone"},
		{&requests.Refusal{Err: cause}, "the disk is full"},
		{&requests.Refusal{Status: http.StatusTooEarly}, "Too Early"},
		{&requests.Refusal{}, "Internal Server Error"},
	} {
		if got := test.refusal.Error(); got != test.want {
			t.Errorf("got %q, want %q", got, test.want)
		}
	}
	if !errors.Is(requests.Refuse(0, "session: %w", cause), cause) {
		t.Error("a refusal does not unwrap to its cause")
	}
}

// A task with typed data: every fault of it is told at once.
func ExampleRead() {
	fields := requests.Read([]byte(`{"city": 5}`), "body", "task_data")
	city := fields.Text("city")
	year := fields.Whole("year")
	unit := fields.NonEmpty("unit")
	fmt.Printf("%q %d %q\n", city, year, unit)
	fmt.Println(fields.Err())
	// Output:
	// "" 0 ""
	// body.task_data.city: Input should be a valid string; body.task_data.unit: Field required
}

// A list of more than a million objects is not taken apart.
func TestAListIsBounded(t *testing.T) {
	fields := requests.Read([]byte(`{"l":[{}`+strings.Repeat(`,{}`, 1_000_000)+`]}`), "body")
	list, err := fields.List("l"), fields.Err()
	if want := "body.l: List should have at most 1000000 items"; len(list) != 0 || err == nil || err.Error() != want {
		t.Errorf("%d objects, %v; want none, %s", len(list), err, want)
	}
}
