package tables_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/environments/internal/tables"
	"example.com/turn/servers/requests"
)

var visits = &tables.Schema{Name: "visits", Row: "visit", Columns: []tables.Column{
	{Name: "guest", Description: "Who comes."},
	{Name: "at", Type: tables.Moment, Description: "When."},
	{Name: "hours", Type: tables.Whole(0, 8), Description: "For how long."},
	{Name: "mail", Type: tables.Address, Optional: true, Description: "Where they are written to."},
	{Name: "until", Type: tables.Day, Optional: true, Description: "The last day."},
	{Name: "room", Type: tables.OneOf("red", "blue"), Optional: true, Description: "Where."},
}}

// read makes a table of a JSON array of rows, and the error of its faults.
func read(rows string) (*tables.Table, error) {
	fields := requests.Read(json.RawMessage(`{"rows":` + rows + `}`))
	table := tables.New(visits)
	table.Put(fields.List("rows"))
	return table, fields.Err()
}

func mustRead(t *testing.T, rows string) *tables.Table {
	t.Helper()
	table, err := read(rows)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func text(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAValueIsBroughtIntoTheFormOfItsColumn(t *testing.T) {
	for _, test := range []struct{ column, given, want string }{
		{"guest", `" Ann <&> Bob\n"`, "Ann <&> Bob"},
		{"at", `"2025-03-14T09:30"`, "2025-03-14T09:30"},
		{"at", `"2025-03-14T09:30:00"`, "2025-03-14T09:30"},
		{"at", `"2024-02-29T23:59"`, "2024-02-29T23:59"},
		{"hours", `8`, "8"},
		{"hours", `2.0`, "2"},
		{"hours", `2e0`, "2"},
		{"hours", `-0`, "0"},
		{"hours", `0`, "0"},
		{"mail", `"Ann.B+1@Example.COM"`, "ann.b+1@example.com"},
		{"mail", `""`, ""},
		{"mail", `null`, ""},
		{"until", `"2025-12-31"`, "2025-12-31"},
		{"room", `"Red"`, "red"},
	} {
		object := requests.Read(json.RawMessage(`{"` + test.column + `":` + test.given + `}`))
		got := tables.Read(object, columnOf(test.column))
		if err := object.Err(); err != nil || got[test.column] != test.want {
			t.Errorf("%s %s: got %q and %v, want %q", test.column, test.given, got[test.column], err, test.want)
		}
	}
}

func columnOf(name string) []tables.Column {
	for _, column := range visits.Columns {
		if column.Name == name {
			return []tables.Column{column}
		}
	}
	return nil
}

func TestAValueThatIsNoneOfItsColumnIsAFault(t *testing.T) {
	for _, test := range []struct{ column, object, want string }{
		{"guest", `{}`, "guest: Field required"},
		{"guest", `{"guest":null}`, "guest: Input should be a valid string"},
		{"guest", `{"guest":""}`, "guest: String should have at least 1 character"},
		{"guest", `{"guest":" \t"}`, "guest: String should have at least 1 character"},
		{"at", `{"at":"14 March 2025"}`, `at: Input should be a date and time such as "2025-03-14T09:30"`},
		{"at", `{"at":"2025-03-14"}`, `at: Input should be a date and time such as "2025-03-14T09:30"`},
		{"at", `{"at":"2025-02-29T09:30"}`, `at: Input should be a date and time such as "2025-03-14T09:30"`},
		{"at", `{"at":"2025-03-14T24:00"}`, `at: Input should be a date and time such as "2025-03-14T09:30"`},
		{"at", `{"at":"2025-03-14T09:30:01"}`, `at: Input should be a date and time such as "2025-03-14T09:30"`},
		{"at", `{"at":"2025-03-14T09:30Z"}`, `at: Input should be a date and time such as "2025-03-14T09:30"`},
		{"hours", `{}`, "hours: Field required"},
		{"hours", `{"hours":"2"}`, "hours: Input should be a valid integer"},
		{"hours", `{"hours":2.5}`, "hours: Input should be a valid integer"},
		{"hours", `{"hours":1e999}`, "hours: Input should be a valid integer"},
		{"hours", `{"hours":null}`, "hours: Input should be a valid integer"},
		{"hours", `{"hours":true}`, "hours: Input should be a valid integer"},
		{"hours", `{"hours":-1}`, "hours: Input should be from 0 to 8"},
		{"hours", `{"hours":9}`, "hours: Input should be from 0 to 8"},
		{"hours", `{"hours":1e30}`, "hours: Input should be from 0 to 8"},
		{"mail", `{"mail":"ann"}`, `mail: Input should be an e-mail address such as "ann@example.com"`},
		{"mail", `{"mail":"Ann <ann@example.com>"}`, `mail: Input should be an e-mail address such as "ann@example.com"`},
		{"mail", `{"mail":["ann@example.com"]}`, "mail: Input should be a valid string"},
		{"until", `{"until":"2025-03-14T09:30"}`, `until: Input should be a date such as "2025-03-14"`},
		{"until", `{"until":"2025-13-01"}`, `until: Input should be a date such as "2025-03-14"`},
		{"room", `{"room":"green"}`, "room: Input should be one of red, blue"},
	} {
		object := requests.Read(json.RawMessage(test.object))
		tables.Read(object, columnOf(test.column))
		if err := object.Err(); err == nil || err.Error() != test.want {
			t.Errorf("%s: got %v, want %s", test.object, err, test.want)
		}
	}
}

func TestTheFaultsOfRowsAreAllNamed(t *testing.T) {
	const fine = `"guest":"Ann","at":"2025-03-14T09:30","hours":2`
	for _, test := range []struct{ name, rows, want string }{
		{"no rows", `5`, "rows: Input should be a valid list"},
		{"a row that is none", `["Ann"]`, "rows.0: Input should be a valid dictionary"},
		{"no id", `[{` + fine + `}]`, "rows.0.id: Field required"},
		{"an id of another table", `[{"id":"event-1",` + fine + `}]`, `rows.0.id: Input should be "visit-" and a number, such as "visit-7"`},
		{"an id without a number", `[{"id":"visit-x",` + fine + `}]`, `rows.0.id: Input should be "visit-" and a number, such as "visit-7"`},
		{"an id with a zero in front", `[{"id":"visit-07",` + fine + `}]`, `rows.0.id: Input should be "visit-" and a number, such as "visit-7"`},
		{"the id 0", `[{"id":"visit-0",` + fine + `}]`, `rows.0.id: Input should be "visit-" and a number, such as "visit-7"`},
		{"an id that leaves no room behind it", `[{"id":"visit-1000000000",` + fine + `}]`, `rows.0.id: Input should be "visit-" and a number, such as "visit-7"`},
		{"an id twice", `[{"id":"visit-1",` + fine + `},{"id":"visit-1",` + fine + `}]`, "rows.1.id: There are two rows of the id visit-1"},
		{"an unknown column", `[{"id":"visit-1","hat":"top",` + fine + `}]`, "rows.0.hat: Extra inputs are not permitted"},
		{"everything", `[{"id":"visit-1","at":"soon"},{"guest":5,"hours":9}]`,
			`rows.0.guest: Field required; rows.0.at: Input should be a date and time such as "2025-03-14T09:30"; rows.0.hours: Field required; ` +
				`rows.1.id: Field required; rows.1.guest: Input should be a valid string; rows.1.at: Field required; rows.1.hours: Input should be from 0 to 8`},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := read(test.rows); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

const three = `[
	{"id":"visit-7","guest":"Ann","at":"2025-03-14T09:30","hours":2,"mail":"ann@example.com"},
	{"id":"visit-2","guest":"Børge","at":"2025-03-15T09:30","hours":1,"room":"red"},
	{"id":"visit-30","guest":"Ann Two","at":"2025-03-14T09:30","hours":3}
]`

func ids(rows []tables.Row) string {
	var ids []string
	for _, row := range rows {
		ids = append(ids, row.ID)
	}
	return strings.Join(ids, " ")
}

func TestRowsAreKeptByTheirNumbers(t *testing.T) {
	table := mustRead(t, three)
	if got := ids(table.Rows()); got != "visit-2 visit-7 visit-30" {
		t.Errorf("the rows are %s", got)
	}
	row, there := table.Find("visit-7")
	want := `{"id":"visit-7","guest":"Ann","at":"2025-03-14T09:30","hours":2,"mail":"ann@example.com","until":null,"room":null}`
	if got := text(t, row); !there || got != want {
		t.Errorf("visit-7 is %s, want %s", got, want)
	}
	if got, want := text(t, row.Without("at", "mail", "until")), `{"id":"visit-7","guest":"Ann","hours":2,"room":null}`; got != want {
		t.Errorf("less of it is %s, want %s", got, want)
	}
	for _, id := range []string{"", "visit-", "visit-1", "visit-07", "visit--7", "7", "visit-99999999999999999999"} {
		if _, there := table.Find(id); there {
			t.Errorf("there is a row of the id %q", id)
		}
	}
}

func TestARowThatIsPutAgainTakesThePlaceOfTheFirst(t *testing.T) {
	table := mustRead(t, three)
	more := requests.Read(json.RawMessage(`{"rows":[{"id":"visit-7","guest":"Zoe","at":"2025-03-14T09:30","hours":2}]}`))
	table.Put(more.List("rows"))
	if row, _ := table.Find("visit-7"); more.Err() != nil || row.Values["guest"] != "Zoe" || row.Values["mail"] != "" {
		t.Errorf("visit-7 is %v, %v", row.Values, more.Err())
	}
}

func TestANumberIsNotGivenTwice(t *testing.T) {
	table := mustRead(t, three)
	first := table.Add(tables.Values{"guest": "Cem"})
	table.Remove(first)
	second := table.Add(tables.Values{"guest": "Dag"})
	if first.ID != "visit-31" || second.ID != "visit-32" {
		t.Errorf("the added rows are %s and %s, want visit-31 and visit-32", first.ID, second.ID)
	}
	if got := ids(table.Rows()); got != "visit-2 visit-7 visit-30 visit-32" {
		t.Errorf("the rows are %s", got)
	}
}

func TestAChangeKeepsWhatItDoesNotName(t *testing.T) {
	table := mustRead(t, three)
	before, _ := table.Find("visit-7")
	clone := table.Clone()
	arguments := requests.Read(json.RawMessage(`{"guest":null,"hours":4,"mail":""}`))
	after := table.Change(before, tables.Read(arguments, tables.Kept(visits.Columns)))
	want := tables.Values{"guest": "Ann", "at": "2025-03-14T09:30", "hours": "4", "mail": "", "until": "", "room": ""}
	if diff := cmp.Diff(want, after.Values); diff != "" || arguments.Err() != nil {
		t.Errorf("%v (-want +got):\n%s", arguments.Err(), diff)
	}
	if before.Values["hours"] != "2" {
		t.Error("the row as it was has changed too")
	}
	if row, _ := clone.Find("visit-7"); row.Values["hours"] != "2" {
		t.Error("the clone has changed too")
	}
	arguments = requests.Read(json.RawMessage(`{"guest":""}`))
	tables.Read(arguments, tables.Kept(visits.Columns))
	if err := arguments.Err(); err == nil || err.Error() != "guest: String should have at least 1 character" {
		t.Errorf("a guest without a name: %v", err)
	}
}

func TestASearchWantsEveryWordInAnyCase(t *testing.T) {
	table := mustRead(t, three)
	for query, want := range map[string]string{
		"":                 "visit-2 visit-7 visit-30",
		"ANN":              "visit-7 visit-30",
		"  two   ann ":     "visit-30",
		"ann ann@example":  "visit-7",
		"BØRGE":            "visit-2",
		"2025-03-14T09:30": "visit-7 visit-30",
		"red":              "visit-2",
		"ann red":          "",
		"visit":            "",
	} {
		if got := ids(table.Search(query)); got != want {
			t.Errorf("%q: found %q, want %q", query, got, want)
		}
	}
}

func TestParametersAreAStrictSchema(t *testing.T) {
	const want = `{"type":"object","properties":{` +
		`"guest":{"type":"string","description":"Who comes."},` +
		`"at":{"type":["string","null"],"description":"When."},` +
		`"hours":{"type":["integer","null"],"description":"For how long."},` +
		`"room":{"type":["string","null"],"description":"Where.","enum":["red","blue",null]}},` +
		`"required":["guest","at","hours","room"],"additionalProperties":false}`
	columns := append([]tables.Column{visits.Columns[0]}, tables.Kept(visits.Columns[1:3])...)
	columns = append(columns, visits.Columns[5])
	if got := string(tables.Parameters(columns)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
