package filing_test

import (
	"math"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"example.com/turn/servers/environments/internal/filing"
)

func TestACellIsReadAsANumber(t *testing.T) {
	for _, test := range []struct {
		cell string
		want float64
		ok   bool
	}{
		{"412.5", 412.5, true},
		{" 1,874.2 ", 1874.2, true},
		{"1,234,567", 1234567, true},
		{"(58.2)", -58.2, true},
		{"-3", -3, true},
		{"41.0 %", 41, true},
		{"(2%)", -2, true},
		{"0", 0, true},
		{"1,23", 0, false},
		{"12,345,6", 0, false},
		{"(58.2", 0, false},
		{"58.2)", 0, false},
		{"(-3)", 0, false},
		{".5", 0, false},
		{"5.", 0, false},
		{"1e3", 0, false},
		{"–", 0, false},
		{"2022 restated", 0, false},
		{"", 0, false},
	} {
		if got, ok := filing.Number(test.cell); got != test.want || ok != test.ok {
			t.Errorf("%q: got %v, %v, want %v, %v", test.cell, got, ok, test.want, test.ok)
		}
	}
}

func TestAUnitIsReadAsPeopleWordIt(t *testing.T) {
	for text, want := range map[string]filing.Unit{
		"euros":                 {Scale: 1, Measure: "eur"},
		"EUR":                   {Scale: 1, Measure: "eur"},
		"million euros":         {Scale: 1e6, Measure: "eur"},
		"In million euros":      {Scale: 1e6, Measure: "eur"},
		"millions of euros":     {Scale: 1e6, Measure: "eur"},
		"€m":                    {Scale: 1e6, Measure: "eur"},
		"EURm":                  {Scale: 1e6, Measure: "eur"},
		"TEUR":                  {Scale: 1e3, Measure: "eur"},
		"€'000":                 {Scale: 1e3, Measure: "eur"},
		"1,000 euros":           {Scale: 1e3, Measure: "eur"},
		"thousand":              {Scale: 1e3},
		"thousand million":      {Scale: 1e9},
		"$bn":                   {Scale: 1e9, Measure: "usd"},
		"million US dollars":    {Scale: 1e6, Measure: "usd"},
		"pounds sterling":       {Scale: 1, Measure: "gbp"},
		"pence per share":       {Scale: 1, Measure: "pence share"},
		"Pence a share":         {Scale: 1, Measure: "pence share"},
		"%":                     {Scale: 1, Measure: "percent"},
		"per cent":              {Scale: 1, Measure: "percent"},
		"percentage points":     {Scale: 1, Measure: "percentage point"},
		"vessels":               {Scale: 1, Measure: "vessel"},
		"Thousand cubic metres": {Scale: 1e3, Measure: "cubic metre"},
	} {
		got, err := filing.ParseUnit(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

func TestATextThatNamesNoUnitIsRefused(t *testing.T) {
	for text, want := range map[string]string{
		"":                        "names no unit",
		" ?! ":                    "names no unit",
		"million billion billion": "is of a scale that nobody counts in",
	} {
		if unit, err := filing.ParseUnit(text); err == nil || err.Error() != want || unit != (filing.Unit{}) {
			t.Errorf("%q: got %v, %v, want the error %s", text, unit, err, want)
		}
	}
}

func FuzzNumber(f *testing.F) {
	f.Add("(1,874.2)")
	f.Add("-41.0 %")
	f.Fuzz(func(t *testing.T, cell string) {
		value, ok := filing.Number(cell)
		if !ok {
			return
		}
		if math.IsInf(value, 0) || math.IsNaN(value) {
			t.Errorf("%q is %v", cell, value)
		}
		if again, ok := filing.Number(strconv.FormatFloat(value, 'f', -1, 64)); !ok || again != value {
			t.Errorf("%q is %v, and that is %v, %v", cell, value, again, ok)
		}
	})
}

func FuzzParseUnit(f *testing.F) {
	f.Add("In million euros")
	f.Add("€'000")
	f.Fuzz(func(t *testing.T, text string) {
		unit, err := filing.ParseUnit(text)
		if err != nil {
			return
		}
		if !(unit.Scale >= 1 && unit.Scale <= 1e15) {
			t.Errorf("the scale of %q is %v", text, unit.Scale)
		}
	})
}
