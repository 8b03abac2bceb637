package environments

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"example.com/turn/internal/rawjson"
	"example.com/turn/servers/environments/internal/filing"
	"example.com/turn/servers/requests"
)

//go:embed testdata/filings/*.txt
var filingTexts embed.FS

// A readingRoom has the filings that there are, taken apart once and for all: all
// sessions read the same ones, because nobody changes them, and a session of its own
// copies would be as large as they are. What differs between sessions, which filings
// are parsed and the index of them, is in the [reading].
type readingRoom struct {
	filings map[string]filing.Filing
	names   []string // sorted
	clock   func() time.Time
}

func openReadingRoom(clock func() time.Time) (*readingRoom, error) {
	if clock == nil {
		clock = time.Now
	}
	room := &readingRoom{filings: map[string]filing.Filing{}, clock: clock}
	files, err := fs.Glob(filingTexts, "testdata/filings/*.txt") // sorted
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := filingTexts.ReadFile(file)
		if err != nil {
			return nil, err
		}
		name := path.Base(file)
		parsed, err := filing.Parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("filing %s: %w", name, err)
		}
		room.filings[name] = parsed
		room.names = append(room.names, name)
	}
	return room, nil
}

// companies are those whose filings there are, sorted.
func (room *readingRoom) companies() []string {
	var companies []string
	for _, parsed := range room.filings {
		companies = append(companies, parsed.Company)
	}
	slices.Sort(companies)
	return slices.Compact(companies)
}

// checkName notes a fault of a field that names a filing.
func (room *readingRoom) checkName(fields *requests.Fields, field, name string) {
	if _, ok := room.filings[name]; !ok {
		fields.Fault(field, "value_error", fmt.Sprintf("there is no filing %q; there are: %s", name, strings.Join(room.names, ", ")))
	}
}

// namesIn are the names of filings that a field lists.
func (room *readingRoom) namesIn(fields *requests.Fields, field string) []string {
	var names []string
	for _, element := range rawjson.Elements(fields.Array(field)) {
		name, ok := rawjson.Text(element)
		if !ok {
			fields.Fault(field, "string_type", "Input should be a list of valid strings")
			continue
		}
		room.checkName(fields, field, name)
		names = append(names, name)
	}
	return names
}
