package environments

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.com/turn/servers/agentserver"
	"example.com/turn/servers/environments/internal/filing"
	"example.com/turn/servers/environments/internal/fulltext"
)

// playFilings is the scripted model: it opens the filing whose name has most of the
// question's words, searches it for the question, and submits a number out of the
// tables that it finds. It is easily mistaken, as its tasks want some to be: it
// reads no prose and one filing only, does not tell a segment from the whole, and
// minds the unit of a table only when the question asks to state it.
func playFilings(conversation agentserver.Conversation) agentserver.Move {
	question := conversation.LastSaid("user")
	for _, tool := range []string{listFilings, parseFiling, searchFiling, submitFigure} {
		if !slices.Contains(conversation.Tools, tool) {
			return agentserver.Move{Say: "I would have to read the filing, but I have no tool for that."}
		}
	}
	if len(conversation.Calls) == 0 {
		return callFilingTool(listFilings, map[string]any{})
	}
	last := conversation.Calls[len(conversation.Calls)-1]
	switch last.Name {
	case listFilings:
		return chooseFiling(question, last.Output)
	case parseFiling:
		return searchOpened(question, last.Output)
	case searchFiling:
		return submitFound(question, last.Output)
	}
	return reportSubmission(last.Output)
}

func callFilingTool(name string, arguments map[string]any) agentserver.Move {
	encoded, _ := json.Marshal(arguments) // texts and finite numbers always encode
	return agentserver.Move{Calls: []agentserver.ToolCall{{Name: name, Arguments: encoded}}}
}

func chooseFiling(question, listed string) agentserver.Move {
	var answer struct{ Filings []string }
	_ = json.Unmarshal([]byte(listed), &answer) // what is no list names no filing
	words := fulltext.Words(question)
	best, most := "", 0
	for _, name := range answer.Filings {
		named := strings.TrimSuffix(name, ".txt")
		if common := sharedWords(fulltext.Words(named), words); common > 1 && common >= most { // the later of equals
			best, most = name, common
		}
	}
	if best == "" {
		return agentserver.Move{Say: "I know of no filing of that company."}
	}
	return callFilingTool(parseFiling, map[string]any{"name": best})
}

// sharedWords is how many of the words are among others.
func sharedWords(words, others []string) int {
	count := 0
	for _, word := range words {
		if slices.Contains(others, word) {
			count++
		}
	}
	return count
}

func searchOpened(question, parsed string) agentserver.Move {
	var answer parsedFiling
	if json.Unmarshal([]byte(parsed), &answer) != nil || answer.Name == "" {
		return giveUpFiling(parsed)
	}
	return callFilingTool(searchFiling, map[string]any{"query": question, "limit": 10})
}

// giveUpFiling says what a tool has refused.
func giveUpFiling(output string) agentserver.Move {
	var refusal struct{ Detail any }
	if json.Unmarshal([]byte(output), &refusal) != nil || refusal.Detail == nil {
		return agentserver.Move{Say: "I could not find the figure."}
	}
	return agentserver.Move{Say: fmt.Sprintf("I could not find the figure: %v.", refusal.Detail)}
}

func submitFound(question, found string) agentserver.Move {
	var answer foundPassages
	_ = json.Unmarshal([]byte(found), &answer) // a refusal has no passages
	best := filingRow{}
	for _, passage := range answer.Passages {
		if passage.Kind != filing.Table {
			continue
		}
		if row := rowFor(question, passage); row.words > best.words { // the first of equals
			best = row
		}
	}
	if best.words == 0 {
		return giveUpFiling(found)
	}
	arguments := map[string]any{"value": best.value, "unit": nil}
	if strings.Contains(question, "State the unit") && best.caption != "" {
		arguments["unit"] = best.caption
	}
	return callFilingTool(submitFigure, arguments)
}

// A filingRow is what was taken out of a table.
type filingRow struct {
	caption string
	words   int // of its label
	value   float64
}

// rowFor is the row with the longest label of which the question has every word,
// and its number in the column of the question's year. It has no words when there
// is no such row, or no such column. The company's name is no label.
func rowFor(question string, table foundPassage) filingRow {
	words := slices.DeleteFunc(fulltext.Words(question), func(word string) bool {
		return slices.Contains(fulltext.Words(table.Document), word)
	})
	best, column := filingRow{}, 0
	for line := range strings.Lines(table.Text) {
		cells := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		label := fulltext.Words(cells[0])
		switch {
		case len(cells) == 1:
			best.caption = cells[0]
		case len(label) == 0:
			column = columnFor(question, cells)
		case column < len(cells) && len(label) > best.words && sharedWords(label, words) == len(label):
			if value, ok := filing.Number(cells[column]); ok {
				best.words, best.value = len(label), value
			}
		}
	}
	return best
}

// askedYear is what a question and the head of a column may have in common.
var askedYear = regexp.MustCompile(`\b20\d\d\b`)

// columnFor is 0, where the labels are, when none is headed as the question's year.
func columnFor(question string, heads []string) int {
	return max(0, slices.Index(heads, askedYear.FindString(question)))
}

func reportSubmission(output string) agentserver.Move {
	var answer struct{ Submitted string }
	if json.Unmarshal([]byte(output), &answer) != nil || answer.Submitted == "" {
		return giveUpFiling(output)
	}
	return agentserver.Move{Say: "I have submitted " + answer.Submitted + "."}
}
