package environments

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"slices"
	"strings"

	"example.com/turn/failures"
	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/environments/internal/tables"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

// The workplace environment. A task is something to be done in a small office: its
// calendar, its e-mails and the tasks of its projects are tables, which each session
// has for itself and which its tools search and change. What is to be done is said
// by the calls that do it:
//
//	{"expected": [{"tool": "calendar_delete_event", "arguments": {"id": "event-7"}}]}
//
// The reward is 1 when all tables are in the end as these calls would have left
// them, in whatever way the model got there, else 0. Rows that were added may have
// any id and come in any order. A task may also bring rows of its own,
//
//	{"tables": {"calendar": [{"id": "event-90", "title": "Fire drill", …}]}}
//
// each in addition to the office's, or in place of the one of its id; and it may
// take a table's provider away, {"outage": ["email"]}: then the tools of that table
// are refused, and the answer is masked, whatever was done.

// The office's tables.
const (
	calendarTable = "calendar"
	emailTable    = "email"
	projectsTable = "projects"
)

// In the office it is always the same moment, of the same person's day: what is
// done twice is the same twice.
const (
	officeNow   = "2025-03-12T09:00"
	officeOwner = "dana.whitfield@brightwater.example"
)

//go:embed testdata/workplace/office.json
var workplaceFiles embed.FS

func openWorkplace(config Config) (*Environment, error) {
	return openWorkplaceOf(config, workplaceFiles)
}

// openWorkplaceOf opens the environment of the office in those files. They are read
// for each session anew.
func openWorkplaceOf(config Config, files fs.FS) (*Environment, error) {
	resources, err := resourcesserver.New(resourcesserver.TaskEnvironment[*desk]{
		Name: "workplace",
		Seed: func(_ context.Context, task resourcesserver.Task) (*desk, error) {
			return newDesk(files, task.Fields())
		},
		Tools:   workplaceTools(),
		Verify:  verifyWorkplace,
		Save:    func(d *desk) (any, error) { return d, nil },
		Restore: restoreDesk,
	}, resourcesserver.Config{Logger: config.Logger, Clock: config.Clock})
	if err != nil {
		return nil, err
	}
	return config.environment("workplace", resources, playWorkplace)
}

// A desk is a session: the office as it is, and as it is to be in the end.
type desk struct {
	Office office   `json:"office"`
	Wanted office   `json:"wanted"`
	Outage []string `json:"outage"` // the tables whose providers are down
}

// An office is its tables by their names.
type office map[string]*tables.Table

func newOffice() office {
	o := office{}
	for _, schema := range officeSchemas {
		o[schema.Name] = tables.New(schema)
	}
	return o
}

// newDesk builds the session of a task, and refuses one that could not be scored,
// before a model works on it.
func newDesk(files fs.FS, task *requests.Fields) (*desk, error) {
	o, err := readOffice(files)
	if err != nil {
		return nil, requests.RefuseAs(http.StatusServiceUnavailable, failures.ProviderUnavailable, "the office could not be built: %w", err)
	}
	if task.Has("tables") {
		o.put(task.Object("tables"))
	}
	d := &desk{Office: o, Wanted: o.clone(), Outage: readOutage(task)}
	d.Wanted.replay(task)
	return d, task.Err()
}

// readOffice reads the office that all tasks begin with. Its faults are no faults
// of a request.
func readOffice(files fs.FS) (office, error) {
	text, err := fs.ReadFile(files, "testdata/workplace/office.json")
	if err != nil {
		return nil, err
	}
	o, rows := newOffice(), requests.Read(text, "office.json")
	o.put(rows)
	if err := rows.Err(); err != nil {
		return nil, errors.New(err.Error()) // the type of the faults would make it a 422
	}
	return o, nil
}

// put adds the rows of an object of tables.
func (o office) put(rows *requests.Fields) {
	for _, schema := range officeSchemas {
		o[schema.Name].Put(rows.List(schema.Name))
	}
	rows.Only(calendarTable, emailTable, projectsTable)
}

func (o office) clone() office {
	clone := office{}
	for name, table := range o {
		clone[name] = table.Clone()
	}
	return clone
}

// replay makes the changes that a task expects.
func (o office) replay(task *requests.Fields) {
	if task.Array("expected") == nil {
		return
	}
	for _, expected := range task.List("expected") {
		expected.Only("tool", "arguments")
		name := expected.NonEmpty("tool")
		arguments := expected.Object("arguments")
		if tool, there := officeToolNamed(name); there {
			_, _ = tool.run(o, arguments) // its error is a fault of the task
		} else if name != "" {
			expected.Fault("tool", "value_error", fmt.Sprintf("There is no tool %q", name))
		}
	}
}

func readOutage(task *requests.Fields) []string {
	if !task.Has("outage") {
		return nil
	}
	var outage []string
	for _, element := range rawjson.Elements(task.Array("outage")) {
		name, _ := rawjson.Text(element)
		if name != calendarTable && name != emailTable && name != projectsTable {
			task.Fault("outage", "value_error", "Input should be a list of tables: calendar, email, projects")
		}
		outage = append(outage, name)
	}
	return outage
}

// workplaceTools are the office's tools as the kit takes them.
func workplaceTools() []resourcesserver.Tool[*desk] {
	var offered []resourcesserver.Tool[*desk]
	for _, tool := range officeTools {
		offered = append(offered, resourcesserver.Tool[*desk]{
			Name:        tool.name,
			Description: tool.description,
			Parameters:  tables.Parameters(tool.parameters),
			Call: func(_ context.Context, d *desk, arguments json.RawMessage) (any, error) {
				if slices.Contains(d.Outage, tool.table) {
					return nil, requests.RefuseAs(http.StatusServiceUnavailable, failures.ProviderUnavailable, "the provider of %s is down", tool.table)
				}
				return tool.run(d.Office, requests.Read(arguments, "body"))
			},
		})
	}
	return offered
}

// maxDifferences is how many differences a verdict lists.
const maxDifferences = 20

// verifyWorkplace compares every table, also those that nothing was to be done in.
func verifyWorkplace(_ context.Context, d *desk, _ resourcesserver.Answer) (resourcesserver.Verdict, error) {
	differences := []tables.Difference{}
	for _, schema := range officeSchemas {
		differences = append(differences, tables.Compare(d.Wanted[schema.Name], d.Office[schema.Name])...)
	}
	verdict := resourcesserver.Verdict{Extra: map[string]any{
		"differences":       differences[:min(len(differences), maxDifferences)],
		"differences_total": len(differences),
	}}
	switch {
	case len(d.Outage) > 0:
		verdict.Mask, verdict.Kind = true, failures.ProviderUnavailable
		verdict.Reason = "the provider of " + strings.Join(d.Outage, " and ") + " was down"
	case len(differences) == 0:
		verdict.Reward = 1
	}
	return verdict, nil
}

func restoreDesk(_ context.Context, saved json.RawMessage) (*desk, error) {
	fields := requests.Read(saved)
	d := &desk{
		Office: restoreOffice(fields.Object("office")),
		Wanted: restoreOffice(fields.Object("wanted")),
		Outage: readOutage(fields),
	}
	return d, fields.Err()
}

func restoreOffice(saved *requests.Fields) office {
	o := office{}
	for _, schema := range officeSchemas {
		o[schema.Name] = tables.Restore(schema, saved.Object(schema.Name))
	}
	return o
}
