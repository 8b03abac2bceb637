package environments

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"example.com/turn/failures"
	"example.com/turn/servers/environments/internal/filing"
	"example.com/turn/servers/environments/internal/fulltext"
	"example.com/turn/servers/requests"
	"example.com/turn/servers/resourcesserver"
)

// The filings environment. A task asks for one figure out of the annual reports of
// a few companies, all of them made up,
//
//	{"company": "Northwind Shipping", "figure": 412.5, "unit": "million euros"}
//
// and its tools find it: list_filings says which filings there are, parse_filing
// {"name": "northwind-shipping-2023.txt"} takes one into the session,
// search_filing {"query": "operating income 2023"} finds passages in what the
// session has parsed, and submit_figure {"value": 412.5, "unit": "million euros"}
// answers, once. The reward is 1 when the figure that was submitted is the task's
// within its tolerance (relative; 0.01 unless the task says another), else 0. A
// figure in thousands where millions were asked for is wrong, unless it comes with
// its unit.
//
// A task may limit the time that there is for reading (time_budget_seconds) and for
// the session as a whole (ttl_seconds), and may name filings whose source fails
// (unreadable): an episode that runs into such a one is masked, for then the
// outcome says nothing about the model.

const (
	listFilings  = "list_filings"
	parseFiling  = "parse_filing"
	searchFiling = "search_filing"
	submitFigure = "submit_figure"
)

func openFilings(config Config) (*Environment, error) {
	room, err := openReadingRoom(config.Clock)
	if err != nil {
		return nil, err
	}
	resources, err := resourcesserver.New(resourcesserver.TaskEnvironment[*reading]{
		Name:    "filings",
		Seed:    room.begin,
		Terms:   func(r *reading) resourcesserver.Terms { return resourcesserver.Terms{Lifetime: r.task.lifetime} },
		Tools:   room.tools(),
		Verify:  room.verify,
		Save:    room.save,
		Restore: room.restore,
	}, resourcesserver.Config{Logger: config.Logger, Clock: config.Clock})
	if err != nil {
		return nil, err
	}
	return config.environment("filings", resources, playFilings)
}

// A filingTask is what a task's data says.
type filingTask struct {
	data       json.RawMessage // as it came
	company    string          // whose figure it is; "": it is not said
	figure     float64
	unit       filing.Unit   // of the figure; the zero Unit: a plain number
	tolerance  float64       // relative, such as 0.01
	budget     time.Duration // for parsing and searching, from the seed on; 0: no limit
	lifetime   time.Duration // of the session; 0: the kit's own
	unreadable []string      // names of filings
}

// A reading is a session: what was parsed in it, and what was answered.
type reading struct {
	task  filingTask
	began time.Time // what its time is counted from: the seed

	parsed []string // names, in order
	index  fulltext.Index
	places []passagePlace // of the texts in the index, by their number
	failed []string       // the unreadable filings that were asked for

	submission *submittedFigure // nil: nothing yet
}

// A passagePlace is where a passage is.
type passagePlace struct {
	document, section string
	filing.Passage
}

// A submittedFigure is the model's answer.
type submittedFigure struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"` // as the model worded it; "": the one that was asked for
	// After is how much of the session's time had gone by then, in seconds.
	After float64 `json:"after_seconds"`
}

func (room *readingRoom) begin(_ context.Context, task resourcesserver.Task) (*reading, error) {
	read, err := room.readTask(task.Fields())
	if err != nil {
		return nil, err
	}
	return &reading{task: read, began: room.clock()}, nil
}

func (room *readingRoom) used(r *reading) time.Duration { return room.clock().Sub(r.began) }

type filingTool = func(context.Context, *reading, json.RawMessage) (any, error)

func (room *readingRoom) tools() []resourcesserver.Tool[*reading] {
	return []resourcesserver.Tool[*reading]{
		{
			Name:        listFilings,
			Description: "Lists the names of the filings that there are.",
			Parameters:  json.RawMessage(`{"type":"object","properties":{},"required":[],"additionalProperties":false}`),
			Stateless:   room.list,
		}, {
			Name:        parseFiling,
			Description: "Parses a filing, so that it can be searched, and says which sections it has.",
			Parameters: json.RawMessage(`{"type":"object","properties":{
				"name":{"type":"string","description":"The filing's name, one of those that list_filings gives."}
			},"required":["name"],"additionalProperties":false}`),
			Call: room.inTime(room.parse),
		}, {
			Name:        searchFiling,
			Description: "Finds passages, paragraphs and tables, in the filings that were parsed, the best first.",
			Parameters: json.RawMessage(`{"type":"object","properties":{
				"query":{"type":"string","description":"Words that the passage should have."},
				"limit":{"type":["integer","null"],"description":"How many passages at most, from 1 to 20. Null: 5."}
			},"required":["query","limit"],"additionalProperties":false}`),
			Call: room.inTime(findPassages),
		}, {
			Name:        submitFigure,
			Description: "Submits the figure that was asked for. It can be called once.",
			Parameters: json.RawMessage(`{"type":"object","properties":{
				"value":{"type":"number","description":"The figure."},
				"unit":{"type":["string","null"],"description":"The figure's unit, such as million euros. Null: the unit that was asked for."}
			},"required":["value","unit"],"additionalProperties":false}`),
			Call: room.submit,
		},
	}
}

// inTime is a tool that a session whose time is spent is refused. It is a conflict
// with what the session has become, as a second submission is: the status is final,
// and the model reads what it can do still.
func (room *readingRoom) inTime(call filingTool) filingTool {
	return func(ctx context.Context, r *reading, arguments json.RawMessage) (any, error) {
		if budget := r.task.budget; budget > 0 && room.used(r) >= budget {
			return nil, requests.Refuse(http.StatusConflict, "the time budget of %s s is spent: submit what you have", secondsText(budget))
		}
		return call(ctx, r, arguments)
	}
}

func secondsText(d time.Duration) string { return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) }

func (room *readingRoom) list(_ context.Context, arguments json.RawMessage) (any, error) {
	fields := requests.Read(arguments, "body")
	fields.Only()
	return map[string]any{"filings": room.names}, fields.Err()
}

// A parsedFiling is what parse_filing answers.
type parsedFiling struct {
	Name       string          `json:"name"`
	Company    string          `json:"company"`
	Title      string          `json:"title"`
	Paragraphs int             `json:"paragraphs"`
	Tables     int             `json:"tables"`
	Sections   []parsedSection `json:"sections"`
}

type parsedSection struct {
	Title      string `json:"title"`
	Paragraphs int    `json:"paragraphs"`
	Tables     int    `json:"tables"`
}

// parse takes a filing into the session. It may be called again.
func (room *readingRoom) parse(_ context.Context, r *reading, arguments json.RawMessage) (any, error) {
	fields := requests.Read(arguments, "body")
	fields.Only("name")
	name := room.nameIn(fields)
	if err := fields.Err(); err != nil {
		return nil, err
	}
	if slices.Contains(r.task.unreadable, name) {
		r.failed = addOnce(r.failed, name)
		return nil, requests.RefuseAs(http.StatusServiceUnavailable, failures.ProviderUnavailable, "the source of %s does not answer", name)
	}
	r.take(name, room.filings[name])
	return describeFiling(name, room.filings[name]), nil
}

func (room *readingRoom) nameIn(fields *requests.Fields) string {
	name := fields.NonEmpty("name")
	if name != "" {
		room.checkName(fields, "name", name)
	}
	return name
}

func addOnce(names []string, name string) []string {
	if slices.Contains(names, name) {
		return names
	}
	return append(names, name)
}

// take adds a filing's passages to the index, unless they are there.
func (r *reading) take(name string, parsed filing.Filing) {
	if slices.Contains(r.parsed, name) {
		return
	}
	r.parsed = append(r.parsed, name)
	for _, section := range parsed.Sections {
		for _, passage := range section.Passages {
			r.index.Add(section.Title + "\n" + passage.Text)
			r.places = append(r.places, passagePlace{document: name, section: section.Title, Passage: passage})
		}
	}
}

func describeFiling(name string, parsed filing.Filing) parsedFiling {
	answer := parsedFiling{
		Name:       name,
		Company:    parsed.Company,
		Title:      parsed.Title,
		Paragraphs: parsed.Count(filing.Paragraph),
		Tables:     parsed.Count(filing.Table),
	}
	for _, section := range parsed.Sections {
		answer.Sections = append(answer.Sections, parsedSection{
			Title:      section.Title,
			Paragraphs: section.Count(filing.Paragraph),
			Tables:     section.Count(filing.Table),
		})
	}
	return answer
}

// A foundPassage is one of those that search_filing answers.
type foundPassage struct {
	Document string      `json:"document"`
	Section  string      `json:"section"`
	Kind     filing.Kind `json:"kind"`
	Score    float64     `json:"score"` // to three decimals
	Text     string      `json:"text"`
}

type foundPassages struct {
	Passages []foundPassage `json:"passages"`
	Hint     string         `json:"hint,omitempty"` // when there are none
}

func findPassages(_ context.Context, r *reading, arguments json.RawMessage) (any, error) {
	fields := requests.Read(arguments, "body")
	fields.Only("query", "limit")
	query, limit := fields.NonEmpty("query"), passageLimit(fields)
	if err := fields.Err(); err != nil {
		return nil, err
	}
	found := foundPassages{Passages: []foundPassage{}}
	for _, hit := range r.index.Search(query, limit) {
		at := r.places[hit.Text]
		found.Passages = append(found.Passages, foundPassage{
			Document: at.document,
			Section:  at.section,
			Kind:     at.Kind,
			Score:    math.Round(1000*hit.Score) / 1000,
			Text:     at.Text,
		})
	}
	switch {
	case len(r.parsed) == 0:
		found.Hint = "no filing is parsed yet: parse_filing takes one in, list_filings names them"
	case len(found.Passages) == 0:
		found.Hint = "no passage of the filings that are parsed has any of these words"
	}
	return found, nil
}

const (
	defaultPassages = 5
	maxPassages     = 20
)

func passageLimit(fields *requests.Fields) int {
	if !fields.Has("limit") {
		return defaultPassages
	}
	limit, ok := filingNumber(fields, "limit")
	if ok && (limit != math.Trunc(limit) || limit < 1 || limit > maxPassages) {
		fields.Fault("limit", "value_error", fmt.Sprintf("Input should be a whole number from 1 to %d", maxPassages))
		return 0
	}
	return int(limit)
}

// submit keeps the first figure. It does not say whether that is right.
func (room *readingRoom) submit(_ context.Context, r *reading, arguments json.RawMessage) (any, error) {
	if r.submission != nil {
		return nil, requests.Refuse(http.StatusConflict, "a figure was submitted before, %s: that one stands", r.submission)
	}
	fields := requests.Read(arguments, "body")
	fields.Only("value", "unit")
	submitted := submittedFigure{Value: fields.Number("value"), After: room.used(r).Seconds()}
	if fields.Has("unit") {
		_, submitted.Unit = figureUnit(fields)
	}
	if err := fields.Err(); err != nil {
		return nil, err
	}
	r.submission = &submitted
	return map[string]any{"submitted": submitted.String()}, nil
}

// String is the figure as the model gave it.
func (s *submittedFigure) String() string {
	return strings.TrimSpace(strconv.FormatFloat(s.Value, 'f', -1, 64) + " " + s.Unit)
}

// verify scores the submission, and not what the model says at the end.
//
// An episode that asked for a filing that could not be had is masked even when its
// figure is right: were only the wrong ones left out, an outage would raise the
// mean.
func (room *readingRoom) verify(_ context.Context, r *reading, _ resourcesserver.Answer) (resourcesserver.Verdict, error) {
	verdict := resourcesserver.Verdict{Extra: room.account(r)}
	if len(r.failed) > 0 {
		verdict.Mask, verdict.Kind = true, failures.ProviderUnavailable
		verdict.Reason = "the source of a filing did not answer: " + strings.Join(r.failed, ", ")
		return verdict, nil
	}
	problem := r.task.problemWith(r.submission)
	if problem == "" {
		verdict.Reward = 1
		return verdict, nil
	}
	verdict.Extra["problem"] = problem
	return verdict, nil
}

// account is what a person wants to see of a session, beside its reward.
func (room *readingRoom) account(r *reading) map[string]any {
	used := room.used(r).Seconds()
	if r.submission != nil {
		used = r.submission.After // the time after it is not the model's
	}
	account := map[string]any{
		"company":             nil,
		"figure":              r.task.figure,
		"submission":          r.submission,
		"filings_parsed":      append([]string{}, r.parsed...),
		"time_used_seconds":   used,
		"time_budget_seconds": nil,
	}
	if r.task.company != "" {
		account["company"] = r.task.company
	}
	if r.task.budget > 0 {
		account["time_budget_seconds"] = r.task.budget.Seconds()
	}
	return account
}

// problemWith says why a submission is not the task's figure, "" when it is.
func (t filingTask) problemWith(submitted *submittedFigure) string {
	if submitted == nil {
		return "no figure was submitted"
	}
	asked, given := t.unit, t.unit
	if asked.Scale == 0 {
		asked.Scale, given.Scale = 1, 1
	}
	if submitted.Unit != "" {
		given, _ = filing.ParseUnit(submitted.Unit) // it was read when it was submitted
	}
	if asked.Measure != "" && given.Measure != "" && asked.Measure != given.Measure {
		return fmt.Sprintf("it is a figure in %s, and one in %s was asked for", given.Measure, asked.Measure)
	}
	value := submitted.Value * given.Scale / asked.Scale
	if math.Abs(value-t.figure) > (t.tolerance+scaleRounding)*math.Abs(t.figure) {
		return "it is not within the tolerance of the task's figure"
	}
	return ""
}

// scaleRounding is what a change of scale may cost a float64.
const scaleRounding = 1e-12
