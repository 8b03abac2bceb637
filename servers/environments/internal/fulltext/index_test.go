package fulltext_test

import (
	"cmp"
	"math"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"example.com/turn/servers/environments/internal/fulltext"
)

func indexOf(texts ...string) *fulltext.Index {
	index := &fulltext.Index{}
	for _, text := range texts {
		index.Add(text)
	}
	return index
}

func found(index *fulltext.Index, query string, limit int) []int {
	texts := []int{}
	for _, hit := range index.Search(query, limit) {
		texts = append(texts, hit.Text)
	}
	return texts
}

func TestTheBestTextComesFirst(t *testing.T) {
	for _, test := range []struct {
		name, query string
		texts       []string
		want        []int
	}{
		{"one that has the word", "fuel", []string{"crew", "fuel"}, []int{1}},
		{"both words before one", "fuel costs", []string{"fuel here", "fuel costs", "costs here"}, []int{1, 0, 2}},
		{"a rare word before a common one", "income fuel", []string{"income one", "income two", "fuel three"}, []int{2, 0, 1}},
		{"a short text before a long one", "fuel", []string{"fuel for ships, ferries, lorries", "fuel oil"}, []int{1, 0}},
		{"often before once", "fuel", []string{"fuel oil oil", "fuel fuel oil"}, []int{1, 0}},
		{"of equals the first", "fuel", []string{"fuel a", "crew", "fuel b"}, []int{0, 2}},
		{"in another case, number and place", "VESSELS in 2,023", []string{"crew", "vessel"}, []int{1}},
		{"a number as a whole", "1,874.2", []string{"1874.2", "1,874.3", "874.2", "1"}, []int{0}},
		{"nothing", "fuel", []string{"crew", "ports"}, []int{}},
		{"words that every text has", "what is the", []string{"the crew is there"}, []int{}},
		{"no text at all", "fuel", nil, []int{}},
		{"texts without words", "fuel", []string{"", "?"}, []int{}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := gocmp.Diff(test.want, found(indexOf(test.texts...), test.query, 10)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// One text of two has the word, and both are of the average length: what is left of
// the formula is the logarithm of 1 + 1.5/1.5.
func TestTheScoreIsBM25(t *testing.T) {
	for _, query := range []string{"fuel", "fuel fuel", "the fuel"} {
		hits := indexOf("fuel", "crew").Search(query, 10)
		if len(hits) != 1 || math.Abs(hits[0].Score-math.Ln2) > 1e-12 {
			t.Errorf("%s: got %v, want a score of %v", query, hits, math.Ln2)
		}
	}
}

func TestASearchEndsAtItsLimit(t *testing.T) {
	index := indexOf("fuel", "fuel", "fuel")
	for limit, want := range map[int][]int{-1: {}, 0: {}, 2: {0, 1}, 9: {0, 1, 2}} {
		if diff := gocmp.Diff(want, found(index, "fuel", limit)); diff != "" {
			t.Errorf("limit %d (-want +got):\n%s", limit, diff)
		}
	}
}

func TestWordsAreMadeComparable(t *testing.T) {
	for text, want := range map[string][]string{
		"Northwind's Vessels":        {"northwind", "vessel"},
		"gross  margin, (percent)":   {"gross", "margin", "percent"},
		"loss":                       {"loss"},
		"gas":                        {"gas"},
		"What was it in 2023?":       {"2023"},
		"(2,415.3) 8%":               {"2415.3", "8"},
		"northwind-shipping-2023":    {"northwind", "shipping", "2023"},
		"Sysslebäck cut 241 thereof": {"sysslebäck", "cut", "241", "thereof"},
		"":                           nil,
	} {
		if diff := gocmp.Diff(want, fulltext.Words(text)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", text, diff)
		}
	}
}

// Whatever the texts and the query, the hits are those that share a word with the
// query, once each, in order.
func FuzzSearch(f *testing.F) {
	f.Add("fuel costs", "fuel", "crew costs fuel")
	f.Add("2,415.3", "x 2415.3", "")
	f.Fuzz(func(t *testing.T, query, a, b string) {
		hits := indexOf(a, b).Search(query, 10)
		var got []int
		for _, hit := range hits {
			if !(hit.Score > 0) {
				t.Errorf("the score of a hit is %v", hit.Score)
			}
			got = append(got, hit.Text)
		}
		if !slices.IsSortedFunc(hits, func(x, y fulltext.Hit) int { return cmp.Compare(y.Score, x.Score) }) {
			t.Errorf("the hits are not in order: %v", hits)
		}
		var want []int
		for i, text := range []string{a, b} {
			if slices.ContainsFunc(fulltext.Words(query), func(word string) bool { return slices.Contains(fulltext.Words(text), word) }) {
				want = append(want, i)
			}
		}
		slices.Sort(got)
		if diff := gocmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
