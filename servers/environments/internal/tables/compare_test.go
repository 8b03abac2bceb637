package tables_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/environments/internal/tables"
	"example.com/turn/servers/requests"
)

func TestTablesAreComparedRowByRow(t *testing.T) {
	change := func(table *tables.Table, id string, values tables.Values) {
		row, _ := table.Find(id)
		table.Change(row, values)
	}
	remove := func(table *tables.Table, id string) {
		row, _ := table.Find(id)
		table.Remove(row)
	}
	ann := tables.Values{"guest": "Ann", "at": "2025-03-14T09:30", "hours": "2", "mail": "ann@example.com", "until": "", "room": ""}
	cem, dag := tables.Values{"guest": "Cem"}, tables.Values{"guest": "Dag"}
	whole := func(guest string) tables.Values {
		return tables.Values{"guest": guest, "at": "", "hours": "", "mail": "", "until": "", "room": ""}
	}
	for _, test := range []struct {
		name         string
		wanted, made func(*tables.Table)
		want         []tables.Difference
	}{
		{"nothing was to be done", func(*tables.Table) {}, func(*tables.Table) {}, nil},
		{"a change and its like", func(table *tables.Table) { change(table, "visit-7", dag) }, func(table *tables.Table) {
			change(table, "visit-7", cem)
			change(table, "visit-7", dag)
		}, nil},
		{"another change", func(table *tables.Table) { change(table, "visit-7", dag) }, func(table *tables.Table) { change(table, "visit-7", cem) },
			[]tables.Difference{{Table: "visits", ID: "visit-7", What: tables.Changed, Wanted: dag, Found: cem}}},
		{"a row that is gone", func(*tables.Table) {}, func(table *tables.Table) { remove(table, "visit-7") },
			[]tables.Difference{{Table: "visits", ID: "visit-7", What: tables.Missing, Wanted: ann}}},
		{"a row that was to go", func(table *tables.Table) { remove(table, "visit-7") }, func(*tables.Table) {},
			[]tables.Difference{{Table: "visits", ID: "visit-7", What: tables.Unexpected, Found: ann}}},
		{"added in another order, under other ids", func(table *tables.Table) {
			table.Add(cem)
			table.Add(dag)
		}, func(table *tables.Table) {
			table.Remove(table.Add(cem))
			table.Add(dag)
			table.Add(cem)
		}, nil},
		{"added once too often", func(table *tables.Table) { table.Add(cem) }, func(table *tables.Table) {
			table.Add(cem)
			table.Add(cem)
		}, []tables.Difference{{Table: "visits", ID: "visit-32", What: tables.Unexpected, Found: whole("Cem")}}},
		{"added too seldom", func(table *tables.Table) {
			table.Add(cem)
			table.Add(cem)
		}, func(table *tables.Table) { table.Add(cem) },
			[]tables.Difference{{Table: "visits", What: tables.Missing, Wanted: whole("Cem")}}},
		{"made anew instead of changed", func(table *tables.Table) { change(table, "visit-7", tables.Values{"hours": "3"}) }, func(table *tables.Table) {
			row, _ := table.Find("visit-7")
			table.Remove(row)
			table.Change(table.Add(row.Values), tables.Values{"hours": "3"})
		}, []tables.Difference{
			{Table: "visits", ID: "visit-7", What: tables.Missing, Wanted: with(ann, "hours", "3")},
			{Table: "visits", ID: "visit-31", What: tables.Unexpected, Found: with(ann, "hours", "3")},
		}},
		{"a long value", func(*tables.Table) {}, func(table *tables.Table) { table.Add(tables.Values{"guest": strings.Repeat("ø", 80)}) },
			[]tables.Difference{{Table: "visits", ID: "visit-31", What: tables.Unexpected, Found: whole(strings.Repeat("ø", 50) + "…")}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			begun := mustRead(t, three)
			wanted, made := begun.Clone(), begun.Clone()
			test.wanted(wanted)
			test.made(made)
			if diff := cmp.Diff(test.want, tables.Compare(wanted, made)); diff != "" {
				t.Errorf("the differences (-want +got):\n%s", diff)
			}
			if text(t, begun) != text(t, mustRead(t, three)) {
				t.Error("the table that both came from has changed")
			}
		})
	}
}

func with(values tables.Values, column, value string) tables.Values {
	changed := tables.Values{column: value}
	for name, old := range values {
		if name != column {
			changed[name] = old
		}
	}
	return changed
}

func restore(saved string) (*tables.Table, error) {
	fields := requests.Read(json.RawMessage(saved))
	table := tables.Restore(visits, fields)
	return table, fields.Err()
}

func TestARestoredTableGoesOnWithItsNumbers(t *testing.T) {
	begun := mustRead(t, three)
	made := begun.Clone()
	made.Add(tables.Values{"guest": "Cem", "at": "2025-03-16T10:00", "hours": "0"})
	made.Remove(made.Add(tables.Values{"guest": "Dag"}))
	restored, err := restore(text(t, made))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tables.Compare(begun, made), tables.Compare(begun, restored)); diff != "" {
		t.Errorf("what was added (-made +restored):\n%s", diff)
	}
	if row := restored.Add(tables.Values{"guest": "Eva"}); row.ID != "visit-33" {
		t.Errorf("the next row is %s, want visit-33", row.ID)
	}
}

func TestATableThatWasNotSavedIsNotRestored(t *testing.T) {
	const row = `{"id":"visit-3","guest":"Ann","at":"2025-03-14T09:30","hours":2}`
	for _, saved := range []string{
		`{}`, `{"rows":[],"fresh":1}`, `{"rows":[],"fresh":2,"next":1}`, `{"rows":[],"fresh":0,"next":1}`,
		`{"rows":[` + row + `],"fresh":1,"next":3}`, `{"rows":[{}],"fresh":1,"next":1}`, `{"rows":[],"fresh":"1","next":1}`,
	} {
		if _, err := restore(saved); err == nil {
			t.Errorf("%s was restored", saved)
		}
	}
}

func FuzzRows(f *testing.F) {
	f.Add(three, `{"guest":"Ann"}`)
	f.Add(`[{"id":"visit-999999999","guest":" \ud800 ","at":"0000-01-01T0:00","hours":8.0,"mail":"K@K.K"}]`, `{"hours":0,"room":"BLUE"}`)
	f.Add(`[{"id":"visit-1"},{"id":5}]`, `[]`)
	f.Fuzz(func(t *testing.T, rows, arguments string) {
		table, err := read(rows)
		if err != nil {
			return
		}
		made := table.Clone()
		change := requests.Read(json.RawMessage(arguments))
		values := tables.Read(change, tables.Kept(visits.Columns))
		if all := made.Rows(); change.Err() == nil && len(all) > 0 {
			made.Change(all[0], values)
			made.Add(all[0].Values)
		}
		restored, err := restore(text(t, made))
		if err != nil {
			t.Fatalf("it is not restored: %v\n%s", err, text(t, made))
		}
		if differences := tables.Compare(made, restored); len(differences) > 0 {
			t.Errorf("it is restored with %v", differences)
		}
	})
}
