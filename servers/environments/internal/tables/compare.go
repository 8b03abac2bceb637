package tables

import (
	"maps"
	"slices"
	"unicode/utf8"
)

// A Difference is one row that is not as it was to be. Wanted and Found are the
// values in which it differs, all of them when the row is on one side only; long
// ones are cut.
type Difference struct {
	Table  string `json:"table"`
	ID     string `json:"id,omitempty"` // of the row that was found; "" for an added one that is missing
	What   string `json:"what"`         // Changed, Missing or Unexpected
	Wanted Values `json:"wanted,omitempty"`
	Found  Values `json:"found,omitempty"`
}

// What a difference may be.
const (
	Changed    = "changed"    // the row is there, with other values
	Missing    = "missing"    // the row was to be there
	Unexpected = "unexpected" // the row was not to be there
)

// Compare compares a table with what it was to be. Both come from one table, by
// Clone: the rows that it began with are compared by their ids, those that were
// added by what they say alone, in any order.
func Compare(wanted, found *Table) []Difference {
	var differences []Difference
	for _, number := range wanted.begunWith(found) {
		if difference, is := wanted.compareRow(found, number); is {
			differences = append(differences, difference)
		}
	}
	return append(differences, wanted.compareAdded(found)...)
}

// begunWith are the numbers of the rows that both tables began with and at least
// one still has.
func (t *Table) begunWith(found *Table) []int {
	both := maps.Clone(t.rows)
	maps.Copy(both, found.rows)
	numbers := slices.Sorted(maps.Keys(both))
	return slices.DeleteFunc(numbers, func(number int) bool { return number >= t.fresh })
}

// compareRow compares a row that both tables began with.
func (t *Table) compareRow(found *Table, number int) (Difference, bool) {
	want, wanted := t.rows[number]
	got, there := found.rows[number]
	difference := Difference{Table: t.schema.Name, ID: t.id(number)}
	switch {
	case maps.Equal(want, got):
		return Difference{}, false
	case !there:
		difference.What, difference.Wanted = Missing, shortened(want)
	case !wanted:
		difference.What, difference.Found = Unexpected, shortened(got)
	default:
		difference.What = Changed
		difference.Wanted, difference.Found = shortened(unlike(want, got)), shortened(unlike(got, want))
	}
	return difference, true
}

// unlike are the values of a that are not those of b.
func unlike(a, b Values) Values {
	unlike := Values{}
	for column, value := range a {
		if b[column] != value {
			unlike[column] = value
		}
	}
	return unlike
}

// compareAdded pairs off the rows that were added and are alike.
func (t *Table) compareAdded(found *Table) []Difference {
	var differences []Difference
	left := found.added()
	for _, want := range t.added() {
		i := slices.IndexFunc(left, func(got Row) bool { return maps.Equal(want.Values, got.Values) })
		if i < 0 {
			differences = append(differences, Difference{Table: t.schema.Name, What: Missing, Wanted: shortened(want.Values)})
			continue
		}
		left = slices.Delete(left, i, i+1)
	}
	for _, got := range left {
		differences = append(differences, Difference{Table: t.schema.Name, ID: got.ID, What: Unexpected, Found: shortened(got.Values)})
	}
	return differences
}

func (t *Table) added() []Row {
	return slices.DeleteFunc(t.Rows(), func(row Row) bool { return row.number < t.fresh })
}

// maxShown is how many bytes of a value a difference has.
const maxShown = 100

func shortened(values Values) Values {
	short := Values{}
	for column, value := range values {
		if len(value) > maxShown {
			end := maxShown
			for !utf8.RuneStart(value[end]) {
				end--
			}
			value = value[:end] + "…"
		}
		short[column] = value
	}
	return short
}
