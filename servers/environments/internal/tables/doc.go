// Package tables keeps small typed tables for an environment whose tasks are to
// change some: rows are read out of JSON column by column, with every fault at
// once, found, added, changed and removed by their ids, and compared with what
// they were to be.
//
//	events := tables.New(schema)
//	events.Put(fields.List("calendar"))
//	wanted := events.Clone()
//	…
//	differences := tables.Compare(wanted, events)
//
// A row's id is the schema's word for a row and a number, such as event-7. Rows
// that are added get the numbers behind the highest one, in order, and a number is
// not given twice, so that the same calls on the same table make the same ids.
//
// It is a room of its own because a table knows nothing of the office whose it is.
package tables
