package filing

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
)

// number is a figure as tables print it: grouped by commas, in brackets when it is
// negative.
var number = regexp.MustCompile(`^(\()?(-?)((?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)( ?%)?(\))?$`)

// Number reads a table's cell as a figure: "1,874.2", "(58.2)", "-3", "41.0 %".
func Number(cell string) (value float64, ok bool) {
	parts := number.FindStringSubmatch(strings.TrimSpace(cell))
	if parts == nil || (parts[1] == "") != (parts[5] == "") || parts[1] != "" && parts[2] != "" {
		return 0, false
	}
	value, err := strconv.ParseFloat(strings.ReplaceAll(parts[3], ",", ""), 64)
	if err != nil {
		return 0, false
	}
	if parts[1] != "" || parts[2] != "" {
		value = -value
	}
	return value, true
}

// A Unit is what a figure counts, and by how many at a time.
type Unit struct {
	Scale   float64 // 1e6 in millions; from 1 to maxScale
	Measure string  // in one spelling, such as "eur" or "pence share"; "": it is not said
}

// maxScale keeps a figure times its scale within what can be compared.
const maxScale = 1e15

// ParseUnit reads a unit as people word it: "million euros", "€m", "in thousands",
// "%", "vessels". What it does not know is taken for the name of what is counted.
// The error is of a text without a word, and of a scale that nobody counts in.
func ParseUnit(text string) (Unit, error) {
	unit := Unit{Scale: 1}
	var measure []string
	words := unitWord.FindAllString(strings.ReplaceAll(strings.ToLower(text), "per cent", "percent"), -1)
	if len(words) == 0 {
		return Unit{}, errors.New("names no unit")
	}
	for _, word := range words {
		meaning, known := unitWords[word]
		if !known {
			meaning = Unit{Scale: 1, Measure: strings.TrimSuffix(word, "s")}
		}
		if unit.Scale *= meaning.Scale; unit.Scale > maxScale {
			return Unit{}, errors.New("is of a scale that nobody counts in")
		}
		if meaning.Measure != "" {
			measure = append(measure, meaning.Measure)
		}
	}
	unit.Measure = strings.Join(measure, " ")
	return unit, nil
}

var unitWord = regexp.MustCompile(`\p{L}+|\p{N}+|\p{Sc}|%`)

// unitWords are the words of which more is known than that they are a name. Those
// of scale 1 without a measure only join others.
var unitWords = map[string]Unit{
	"in": {1, ""}, "of": {1, ""}, "a": {1, ""}, "the": {1, ""}, "per": {1, ""}, "us": {1, ""}, "sterling": {1, ""}, "1": {1, ""},
	"thousand": {1e3, ""}, "thousands": {1e3, ""}, "k": {1e3, ""}, "000": {1e3, ""}, "1000": {1e3, ""},
	"million": {1e6, ""}, "millions": {1e6, ""}, "m": {1e6, ""}, "mm": {1e6, ""}, "mn": {1e6, ""}, "mln": {1e6, ""}, "mio": {1e6, ""},
	"billion": {1e9, ""}, "billions": {1e9, ""}, "bn": {1e9, ""}, "b": {1e9, ""},
	"euro": {1, "eur"}, "euros": {1, "eur"}, "eur": {1, "eur"}, "€": {1, "eur"},
	"keur": {1e3, "eur"}, "teur": {1e3, "eur"}, "meur": {1e6, "eur"}, "eurm": {1e6, "eur"},
	"dollar": {1, "usd"}, "dollars": {1, "usd"}, "usd": {1, "usd"}, "$": {1, "usd"}, "usdm": {1e6, "usd"},
	"pound": {1, "gbp"}, "pounds": {1, "gbp"}, "gbp": {1, "gbp"}, "£": {1, "gbp"}, "gbpm": {1e6, "gbp"},
	"penny": {1, "pence"}, "pence": {1, "pence"},
	"percent": {1, "percent"}, "%": {1, "percent"},
}
