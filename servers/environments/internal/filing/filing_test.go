package filing_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/environments/internal/filing"
)

const report = "  Larkspur Foods\r\nAnnual Report 2023 \r\n\f\r\n" + `1. Strategic report

1.1  Who we are

Larkspur Foods bakes bread
and  cakes.

2023 was a good year

12 shops were opened.

2 Accounts

In million
pounds
                     2023    2022 restated
Turnover            327.6            305.2
Cost of sales	(214.9)	(203.3)
  of which flour     80.1             75.0
unaudited

    an indented line
    and another

only  one line has columns
`

func TestAFilingIsTakenApart(t *testing.T) {
	got, err := filing.Parse(report)
	if err != nil {
		t.Fatal(err)
	}
	want := filing.Filing{
		Company: "Larkspur Foods",
		Title:   "Annual Report 2023",
		Sections: []filing.Section{
			{Title: "1. Strategic report"},
			{Title: "1.1 Who we are", Passages: []filing.Passage{
				{Kind: filing.Paragraph, Text: "Larkspur Foods bakes bread and cakes."},
				{Kind: filing.Paragraph, Text: "2023 was a good year"},
				{Kind: filing.Paragraph, Text: "12 shops were opened."},
			}},
			{Title: "2 Accounts", Passages: []filing.Passage{
				{Kind: filing.Table, Text: "In million pounds\n | 2023 | 2022 restated\nTurnover | 327.6 | 305.2\nCost of sales | (214.9) | (203.3)\n | of which flour | 80.1 | 75.0\nunaudited"},
				{Kind: filing.Paragraph, Text: "an indented line and another"},
				{Kind: filing.Paragraph, Text: "only one line has columns"},
			}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if paragraphs, tables := got.Count(filing.Paragraph), got.Count(filing.Table); paragraphs != 5 || tables != 1 {
		t.Errorf("it counts %d paragraphs and %d tables, want 5 and 1", paragraphs, tables)
	}
}

func TestATextThatIsNoFilingIsRefused(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"nothing", "", "the text does not begin with a company and a title, a line each"},
		{"no title", "Larkspur Foods\n\n1. A\n\nText.", "the text does not begin with a company and a title, a line each"},
		{"no section", "Larkspur Foods\nReport\n\n\nText.\n\n1. A\n", "line 5: a passage stands before the first section"},
		{"no passage", "Larkspur Foods\nReport\n\n1. A\n\n2. B\n", "the text has no passages"},
		{"Latin-1", "Larkspur\xe9\nReport\n\n1. A\n\nText.", "the text is not UTF-8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := filing.Parse(test.text); err == nil || err.Error() != test.want {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
}

// Whatever a text is, what is taken out of it is text of its own, and none of its
// words is lost.
func FuzzParse(f *testing.F) {
	f.Add(report)
	f.Add("A\nB\n\n1 C\n\na  b\nc  d\n")
	f.Add("A\nB\n\n1 C\n\n\t\t\n  x\n")
	f.Add("A\nB\n\n1 C\n\n\v")
	f.Fuzz(func(t *testing.T, text string) {
		parsed, err := filing.Parse(text)
		if err != nil {
			return
		}
		kept := []string{parsed.Company, parsed.Title}
		for _, section := range parsed.Sections {
			kept = append(kept, section.Title)
			for _, passage := range section.Passages {
				kept = append(kept, passage.Text)
			}
		}
		for _, part := range kept {
			if part == "" || !utf8.ValidString(part) {
				t.Errorf("a part of %q is %q", text, part)
			}
		}
		if got, want := letters(strings.Join(kept, "")), letters(text); got != want {
			t.Errorf("of %q there is %q left", want, got)
		}
	})
}

// letters are what is left of a text without the spaces and bars that lay it out.
func letters(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), ""), "|", "")
}
