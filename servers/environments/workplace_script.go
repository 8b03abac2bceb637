package environments

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/environments/internal/tables"
)

// playWorkplace is the scripted model: it makes out in the question which calls are
// to be made, by how things are worded, and makes them one after another. It is
// easily mistaken, as its tasks want some to be: of what it finds it takes the
// first, also where all are meant or the days tell them apart; it sees no
// conditions; and it knows no days but those that are written as dates.
func playWorkplace(conversation agentserver.Conversation) agentserver.Move {
	steps, made := officeStepsIn(conversation.LastSaid("user")), len(conversation.Calls)
	if len(steps) == 0 {
		return agentserver.Move{Say: "What exactly is to be done, and when?"}
	}
	var last officeAnswer
	if made > 0 {
		last = readOfficeAnswer(conversation.Calls[made-1].Output)
	}
	switch {
	case last.problem != "":
		return agentserver.Move{Say: "That did not work: " + last.problem}
	case made >= len(steps):
		return agentserver.Move{Say: last.report()}
	case steps[made].ofFound && last.ID == "":
		return agentserver.Move{Say: "I found nothing of that name."}
	}
	return steps[made].move(conversation.Tools, last.ID)
}

// An officeStep is one call of a tool.
type officeStep struct {
	tool      string
	arguments tables.Values
	ofFound   bool // it is about the row that the call before it found
}

func (s officeStep) move(offered []string, id string) agentserver.Move {
	tool, _ := officeToolNamed(s.tool)
	if !slices.Contains(offered, s.tool) {
		return agentserver.Move{Say: fmt.Sprintf("I have no tool %s.", s.tool)}
	}
	if s.ofFound {
		s.arguments["id"] = id
	}
	arguments := tables.AppendJSON(nil, tool.parameters, s.arguments)
	return agentserver.Move{Calls: []agentserver.ToolCall{{Name: s.tool, Arguments: arguments}}}
}

// An officeWording is a way to ask for something. What its groups match are the
// arguments of their names.
type officeWording struct {
	search string // the tool that finds the row that it is about; "": it is about none
	tool   string
	asks   *regexp.Regexp
}

var officeWordings = []officeWording{
	{"", "calendar_search_events", asking(`when is [^".]*"(?P<query>[^"]+)"`)},
	{"", "calendar_create_event", asking(`book "(?P<title>[^"]+)" on (?P<start>[\d-]+ at [\d:]+) for (?P<minutes>[1-9]\d*) minutes(?: with (?P<attendee>\S+@\S+\w))?`)},
	{"calendar_search_events", "calendar_update_event", asking(`move [^".]*"(?P<query>[^"]+)" to (?P<start>[\d-]+ at [\d:]+)`)},
	{"calendar_search_events", "calendar_delete_event", asking(`cancel [^".]*"(?P<query>[^"]+)"`)},
	{"", "email_send", asking(`send (?P<to>\S+@\S+\w) an e-mail "(?P<subject>[^"]+)" that says "(?P<body>[^"]+)"`)},
	{"email_search", "email_forward", asking(`forward [^".]*"(?P<query>[^"]+)" to (?P<to>\S+@\S+\w)`)},
	{"email_search", "email_delete", asking(`delete [^".]*e-mails? "(?P<query>[^"]+)"`)},
	{"", "project_create_task", asking(`add "(?P<title>[^"]+)" to the (?P<status>\w+) of "(?P<project>[^"]+)"(?:, for (?P<assignee>\S+@\S+\w))?(?:, due (?P<due>[\d-]+))?`)},
	{"project_search_tasks", "project_update_task", asking(`mark [^".]*"(?P<query>[^"]+)" as (?P<status>\w+)`)},
	{"project_search_tasks", "project_update_task", asking(`give [^".]*"(?P<query>[^"]+)" to (?P<assignee>\S+@\S+\w)`)},
}

func asking(words string) *regexp.Regexp { return regexp.MustCompile(`(?i)\b` + words) }

// officeStepsIn are the calls that a question asks for, in its order.
func officeStepsIn(question string) []officeStep {
	at := map[int][]officeStep{} // by where in the question they are asked for
	for _, wording := range officeWordings {
		for _, place := range wording.asks.FindAllStringSubmatchIndex(question, -1) {
			at[place[0]] = wording.steps(question, place)
		}
	}
	var steps []officeStep
	for _, place := range slices.Sorted(maps.Keys(at)) {
		steps = append(steps, at[place]...)
	}
	return steps
}

// steps are those of one place that the wording matches.
func (w officeWording) steps(question string, place []int) []officeStep {
	said := tables.Values{}
	for i, name := range w.asks.SubexpNames() {
		if name != "" && place[2*i] >= 0 {
			said[name] = question[place[2*i]:place[2*i+1]]
		}
	}
	said["start"] = strings.Replace(said["start"], " at ", "T", 1)
	if w.search == "" {
		return []officeStep{{tool: w.tool, arguments: said}}
	}
	return []officeStep{
		{tool: w.search, arguments: tables.Values{"query": said["query"]}},
		{tool: w.tool, arguments: said, ofFound: true},
	}
}

// An officeAnswer is what the script reads in a tool's output. Its id, title and
// start are those of the first row that was found, "" when there is none; its problem
// is why there is no answer.
type officeAnswer struct{ ID, Title, Start, problem string }

func readOfficeAnswer(output string) officeAnswer {
	var said struct {
		Found  []officeAnswer
		Detail json.RawMessage
	}
	if err := json.Unmarshal([]byte(output), &said); err != nil {
		return officeAnswer{problem: "I cannot read what I was told."}
	}
	switch {
	case said.Detail != nil:
		return officeAnswer{problem: detailText(said.Detail)}
	case len(said.Found) > 0:
		return said.Found[0]
	}
	return officeAnswer{}
}

// detailText is a refusal's detail: a text, or a list of faults as it came.
func detailText(detail json.RawMessage) string {
	if text, ok := rawjson.Text(detail); ok {
		return text
	}
	return string(detail)
}

// report words what came of it all.
func (a officeAnswer) report() string {
	if a.Start != "" {
		return fmt.Sprintf("%s begins at %s.", a.Title, a.Start)
	}
	return "It is done."
}
