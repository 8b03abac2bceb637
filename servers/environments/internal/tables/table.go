package tables

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/requests"
)

// A Schema is what a table is made of.
type Schema struct {
	Name    string // of the table
	Row     string // what a row is called, and what its id begins with
	Columns []Column
}

// A Table holds rows by their numbers. It is not safe for concurrent use.
type Table struct {
	schema *Schema
	rows   map[int]Values // each has all columns; a change replaces it
	fresh  int            // the number from which on rows are added ones
	next   int            // the number of the next row that is added
}

// A Row is a row as it was when it was asked for.
type Row struct {
	ID      string
	Values  Values // not to be changed
	number  int
	columns []Column
}

// New makes a table without rows.
func New(schema *Schema) *Table {
	return &Table{schema: schema, rows: map[int]Values{}, fresh: 1, next: 1}
}

// highest is the highest number that a row may come with: what is added has its
// number behind it.
const highest = 999_999_999

// Put adds the rows that a table begins with. A row whose id there is already
// takes its place; two rows of one id among those given are a fault.
func (t *Table) Put(rows []*requests.Fields) { t.put(rows, highest) }

func (t *Table) put(rows []*requests.Fields, highest int) {
	seen := map[int]bool{}
	for _, row := range rows {
		number := t.numberOf(row, highest)
		if seen[number] {
			row.Fault("id", "value_error", fmt.Sprintf("There are two rows of the id %s", t.id(number)))
		}
		row.Only(append(Names(t.schema.Columns), "id")...)
		values := Read(row, t.schema.Columns)
		if number == 0 {
			continue
		}
		seen[number] = true
		t.rows[number] = t.whole(values)
		t.next = max(t.next, number+1)
	}
	t.fresh = t.next
}

// numberOf is the number in the id of a row; 0 when it has none.
func (t *Table) numberOf(row *requests.Fields, highest int) int {
	id := row.NonEmpty("id")
	number := t.number(id)
	if id != "" && (number == 0 || number > highest) {
		row.Fault("id", "value_error", fmt.Sprintf(`Input should be "%s-" and a number, such as "%s-7"`, t.schema.Row, t.schema.Row))
		return 0
	}
	return number
}

func (t *Table) id(number int) string { return fmt.Sprintf("%s-%d", t.schema.Row, number) }

// number is the number of an id; 0 when it is none of this table.
func (t *Table) number(id string) int {
	number, err := strconv.Atoi(strings.TrimPrefix(id, t.schema.Row+"-"))
	if err != nil || number < 1 || t.id(number) != id {
		return 0
	}
	return number
}

// whole are values of which none is missing.
func (t *Table) whole(values Values) Values {
	whole := Values{}
	for _, column := range t.schema.Columns {
		whole[column.Name] = values[column.Name]
	}
	return whole
}

func (t *Table) row(number int) Row {
	return Row{ID: t.id(number), Values: t.rows[number], number: number, columns: t.schema.Columns}
}

// Rows are all rows, in the order of their numbers.
func (t *Table) Rows() []Row {
	var rows []Row
	for _, number := range slices.Sorted(maps.Keys(t.rows)) {
		rows = append(rows, t.row(number))
	}
	return rows
}

// Find is the row of an id, if there is one.
func (t *Table) Find(id string) (Row, bool) {
	number := t.number(id)
	_, there := t.rows[number]
	return t.row(number), there
}

// Search finds the rows that have every word of the query somewhere in their
// values, in any case.
func (t *Table) Search(query string) []Row {
	words := strings.Fields(strings.ToLower(query))
	return slices.DeleteFunc(t.Rows(), func(row Row) bool { return !row.has(words) })
}

func (r Row) has(words []string) bool {
	for _, word := range words {
		found := func(column Column) bool { return strings.Contains(strings.ToLower(r.Values[column.Name]), word) }
		if !slices.ContainsFunc(r.columns, found) {
			return false
		}
	}
	return true
}

// Add adds a row under the next number.
func (t *Table) Add(values Values) Row {
	number := t.next
	t.rows[number] = t.whole(values)
	t.next++
	return t.row(number)
}

// Change sets values of a row of the table; the others stay.
func (t *Table) Change(row Row, values Values) Row {
	changed := maps.Clone(t.rows[row.number])
	maps.Copy(changed, values)
	t.rows[row.number] = t.whole(changed)
	return t.row(row.number)
}

// Remove takes a row out of the table.
func (t *Table) Remove(row Row) { delete(t.rows, row.number) }

// Clone is a table of its own with the same rows.
func (t *Table) Clone() *Table {
	clone := *t
	clone.rows = maps.Clone(t.rows) // whose values are never changed
	return &clone
}

// Without is the row as one that does not show some of its columns.
func (r Row) Without(columns ...string) Row {
	r.columns = slices.DeleteFunc(slices.Clone(r.columns), func(column Column) bool {
		return slices.Contains(columns, column.Name)
	})
	return r
}

// By orders rows by a column, those that have the same value by their numbers.
func By(column string) func(a, b Row) int {
	return func(a, b Row) int {
		return cmp.Or(strings.Compare(a.Values[column], b.Values[column]), cmp.Compare(a.number, b.number))
	}
}

// MarshalJSON writes the id and the columns, in the schema's order. A value that is
// empty is null.
func (r Row) MarshalJSON() ([]byte, error) {
	var w rawjson.ObjectWriter
	w.Text("id", r.ID)
	writeValues(&w, r.columns, r.Values)
	return w.End().Bytes(), nil
}

// MarshalJSON writes the table for [Restore].
func (t *Table) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Rows  []Row `json:"rows"`
		Fresh int   `json:"fresh"`
		Next  int   `json:"next"`
	}{append([]Row{}, t.Rows()...), t.fresh, t.next})
}

// Restore makes a table of what MarshalJSON has written. It notes its faults in
// saved.
func Restore(schema *Schema, saved *requests.Fields) *Table {
	t := New(schema)
	t.put(saved.List("rows"), math.MaxInt-1)
	fresh, next := int(saved.Whole("fresh")), int(saved.Whole("next"))
	if fresh < 1 || next < t.next || fresh > next {
		saved.Fault("next", "value_error", "The numbers do not go with the rows")
	}
	t.fresh, t.next = fresh, next
	return t
}
