package environments

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"example.com/turn/servers/environments/internal/tables"
	"example.com/turn/servers/requests"
)

// What the office's tables are made of, and the tools that search and change them.

var (
	folderType  = tables.OneOf("inbox", "sent")
	statusType  = tables.OneOf("backlog", "doing", "review", "done")
	minutesType = tables.Whole(1, 24*60)

	eventColumns = []tables.Column{
		{Name: "title", Description: "What the event is called."},
		{Name: "start", Type: tables.Moment, Description: "When it begins, such as 2025-03-14T09:30."},
		{Name: "minutes", Type: minutesType, Description: "How long it lasts, in minutes."},
		{Name: "attendee", Type: tables.Address, Optional: true, Description: "The e-mail address of whom it is with, if it is with anybody."},
	}
	emailColumns = []tables.Column{
		{Name: "folder", Type: folderType},
		{Name: "from", Type: tables.Address},
		{Name: "to", Type: tables.Address},
		{Name: "subject"},
		{Name: "sent", Type: tables.Moment},
		{Name: "body", Optional: true},
	}
	taskColumns = []tables.Column{
		{Name: "project", Description: "The project's name."},
		{Name: "title", Description: "What is to be done."},
		{Name: "status", Type: statusType, Description: "How far it is."},
		{Name: "assignee", Type: tables.Address, Optional: true, Description: "The e-mail address of whoever does it, if anybody."},
		{Name: "due", Type: tables.Day, Optional: true, Description: "The day by which it is to be done, such as 2025-03-14."},
	}

	officeSchemas = []*tables.Schema{
		{Name: calendarTable, Row: "event", Columns: eventColumns},
		{Name: emailTable, Row: "email", Columns: emailColumns},
		{Name: projectsTable, Row: "task", Columns: taskColumns},
	}
)

// The arguments of tools that are no columns of their tables.
var (
	eventIDColumn  = tables.Column{Name: "id", Description: "The event's id, such as event-3."}
	emailIDColumn  = tables.Column{Name: "id", Description: "The e-mail's id, such as email-3."}
	taskIDColumn   = tables.Column{Name: "id", Description: "The task's id, such as task-3."}
	receiverColumn = tables.Column{Name: "to", Type: tables.Address, Description: "The e-mail address of the receiver."}

	queryColumn    = tables.Column{Name: "query", Optional: true, Description: "Words that must all be in it, in any case. Null: any."}
	firstDayColumn = tables.Column{Name: "first_day", Type: tables.Day, Optional: true, Description: "The first day to look at, such as 2025-03-14. Null: the earliest."}
	lastDayColumn  = tables.Column{Name: "last_day", Type: tables.Day, Optional: true, Description: "The last day to look at. Null: the latest."}
	inFolderColumn = tables.Column{Name: "folder", Type: folderType, Optional: true, Description: "The folder to look in. Null: both."}
	atStatusColumn = tables.Column{Name: "status", Type: statusType, Optional: true, Description: "How far they are. Null: any."}
	limitColumn    = tables.Column{Name: "limit", Type: tables.Whole(1, 50), Optional: true, Description: "How many to show at most. Null: 5."}
)

// An officeTool works on one table of the office.
type officeTool struct {
	table, name, description string
	parameters               []tables.Column
	// call runs the tool with the arguments that were given. The row is the one
	// whose id is among them, if the tool takes an id.
	call func(table *tables.Table, row tables.Row, given tables.Values) any
}

var officeTools = []officeTool{
	{
		calendarTable, "calendar_search_events", "Searches the calendar. Shows the earliest events first.",
		[]tables.Column{queryColumn, firstDayColumn, lastDayColumn, limitColumn}, searchEvents,
	},
	{
		calendarTable, "calendar_create_event", "Puts a new event into the calendar.",
		eventColumns, createRow,
	},
	{
		calendarTable, "calendar_update_event", "Changes an event. What is null stays as it is.",
		append([]tables.Column{eventIDColumn}, tables.Kept(eventColumns)...), updateRow,
	},
	{
		calendarTable, "calendar_delete_event", "Deletes an event.",
		[]tables.Column{eventIDColumn}, deleteRow,
	},
	{
		emailTable, "email_search", "Searches the e-mails. Shows the latest first, without their texts.",
		[]tables.Column{queryColumn, inFolderColumn, firstDayColumn, lastDayColumn, limitColumn}, searchEmails,
	},
	{
		emailTable, "email_read", "Shows an e-mail with its text.",
		[]tables.Column{emailIDColumn}, readEmail,
	},
	{
		emailTable, "email_send", "Sends an e-mail.",
		[]tables.Column{
			receiverColumn,
			{Name: "subject", Description: "What it is about."},
			{Name: "body", Optional: true, Description: "Its text."},
		}, sendEmail,
	},
	{
		emailTable, "email_forward", "Sends an e-mail on to somebody else.",
		[]tables.Column{emailIDColumn, receiverColumn}, forwardEmail,
	},
	{
		emailTable, "email_delete", "Deletes an e-mail.",
		[]tables.Column{emailIDColumn}, deleteRow,
	},
	{
		projectsTable, "project_search_tasks", "Searches the tasks of all projects.",
		[]tables.Column{queryColumn, atStatusColumn, limitColumn}, searchTasks,
	},
	{
		projectsTable, "project_create_task", "Puts a new task into a project.",
		taskColumns, createRow,
	},
	{
		projectsTable, "project_update_task", "Changes a task. What is null stays as it is.",
		append([]tables.Column{taskIDColumn}, tables.Kept(taskColumns)...), updateRow,
	},
	{
		projectsTable, "project_delete_task", "Deletes a task.",
		[]tables.Column{taskIDColumn}, deleteRow,
	},
}

func officeToolNamed(name string) (officeTool, bool) {
	i := slices.IndexFunc(officeTools, func(tool officeTool) bool { return tool.name == name })
	if i < 0 {
		return officeTool{}, false
	}
	return officeTools[i], true
}

// run calls the tool, unless its arguments are at fault. An id that there is not is
// a fault too, but not where others came before it, of a task's rows or of an earlier
// call: they may be why there is none.
func (t officeTool) run(o office, arguments *requests.Fields) (any, error) {
	clean := arguments.Err() == nil
	arguments.Only(tables.Names(t.parameters)...)
	given, id := tables.Read(arguments, t.parameters), eventIDColumn.Name
	row, there := o[t.table].Find(given[id])
	if given[id] != "" && !there && clean {
		arguments.Fault(id, "value_error", fmt.Sprintf("There is nothing of the id %q", given[id]))
	}
	if err := arguments.Err(); err != nil {
		return nil, err
	}
	return t.call(o[t.table], row, given), nil
}

func createRow(table *tables.Table, _ tables.Row, given tables.Values) any { return table.Add(given) }

func updateRow(table *tables.Table, row tables.Row, given tables.Values) any {
	return table.Change(row, given)
}

func deleteRow(table *tables.Table, row tables.Row, _ tables.Values) any {
	table.Remove(row)
	return map[string]string{"deleted": row.ID}
}

func searchEvents(calendar *tables.Table, _ tables.Row, asked tables.Values) any {
	events := ofDays(calendar.Search(asked["query"]), "start", asked)
	slices.SortFunc(events, tables.By("start"))
	return firstRows(events, asked)
}

func searchEmails(emails *tables.Table, _ tables.Row, asked tables.Values) any {
	found := withValue(ofDays(emails.Search(asked["query"]), "sent", asked), "folder", asked)
	slices.SortFunc(found, tables.By("sent"))
	slices.Reverse(found)
	for i := range found {
		found[i] = found[i].Without("body")
	}
	return firstRows(found, asked)
}

func searchTasks(tasks *tables.Table, _ tables.Row, asked tables.Values) any {
	return firstRows(withValue(tasks.Search(asked["query"]), "status", asked), asked)
}

// ofDays are the rows whose moment is on one of the days asked for.
func ofDays(rows []tables.Row, moment string, asked tables.Values) []tables.Row {
	return slices.DeleteFunc(rows, func(row tables.Row) bool {
		day, _, _ := strings.Cut(row.Values[moment], "T")
		return day < asked["first_day"] || asked["last_day"] != "" && day > asked["last_day"]
	})
}

// withValue are the rows that have the value asked for in a column, if one is.
func withValue(rows []tables.Row, column string, asked tables.Values) []tables.Row {
	return slices.DeleteFunc(rows, func(row tables.Row) bool {
		return asked[column] != "" && row.Values[column] != asked[column]
	})
}

// firstRows is what a search answers: as many rows as it may show, and how many
// there are.
func firstRows(rows []tables.Row, asked tables.Values) any {
	most, _ := strconv.Atoi(cmp.Or(asked["limit"], "5")) // it is a number: it was read as one
	return struct {
		Found []tables.Row `json:"found"`
		Total int          `json:"total"`
	}{append([]tables.Row{}, rows[:min(most, len(rows))]...), len(rows)}
}

func readEmail(_ *tables.Table, row tables.Row, _ tables.Values) any { return row }

func sendEmail(emails *tables.Table, _ tables.Row, given tables.Values) any {
	return emails.Add(letter(given["to"], given["subject"], given["body"]))
}

func forwardEmail(emails *tables.Table, row tables.Row, given tables.Values) any {
	return emails.Add(letter(given["to"], "Fwd: "+row.Values["subject"], row.Values["body"]))
}

// letter is an e-mail that the office's owner sends now.
func letter(to, subject, body string) tables.Values {
	return tables.Values{
		"folder": "sent", "from": officeOwner, "sent": officeNow,
		"to": to, "subject": subject, "body": body,
	}
}
