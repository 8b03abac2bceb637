package fulltext

import (
	"cmp"
	"math"
	"slices"
)

// The constants of BM25, as usual: how soon a repeated word stops to count, and how
// much a long text is held against it.
const (
	saturation = 1.2
	lengthBias = 0.75
)

// An Index holds texts by their words. Its zero value is empty. It is not safe for
// concurrent use.
type Index struct {
	postings map[string][]posting
	lengths  []int // of the texts, in words, in the order in which they were added
	words    int   // of all texts
}

// A posting is how often a word is in a text.
type posting struct{ text, count int }

// A Hit is a text that has words of a query.
type Hit struct {
	Text  int     // its number: 0 for the text that was added first
	Score float64 // more than 0; comparable within one index as it is
}

// Add adds a text. Texts are numbered from 0 in the order in which they are added.
func (x *Index) Add(text string) {
	if x.postings == nil {
		x.postings = map[string][]posting{}
	}
	number := len(x.lengths)
	words := Words(text)
	for _, word := range words {
		list := x.postings[word]
		if len(list) == 0 || list[len(list)-1].text != number {
			list = append(list, posting{text: number})
		}
		list[len(list)-1].count++
		x.postings[word] = list
	}
	x.lengths = append(x.lengths, len(words))
	x.words += len(words)
}

// Search returns the texts that have any of the query's words, the best first, at
// most limit. Of equals, the one that was added first comes first. A word that the
// query repeats counts once.
func (x *Index) Search(query string, limit int) []Hit {
	scores := map[int]float64{}
	seen := map[string]bool{}
	for _, word := range Words(query) { // in order: sums of floats depend on it
		if seen[word] {
			continue
		}
		seen[word] = true
		weight := x.rarity(word)
		for _, p := range x.postings[word] {
			scores[p.text] += weight * x.frequency(p)
		}
	}
	hits := make([]Hit, 0, len(scores))
	for text, score := range scores {
		hits = append(hits, Hit{Text: text, Score: score})
	}
	slices.SortFunc(hits, func(a, b Hit) int {
		return cmp.Or(cmp.Compare(b.Score, a.Score), cmp.Compare(a.Text, b.Text))
	})
	return hits[:max(0, min(limit, len(hits)))]
}

// rarity is what a word is worth: the more, the fewer texts have it.
func (x *Index) rarity(word string) float64 {
	with := float64(len(x.postings[word]))
	return math.Log(1 + (float64(len(x.lengths))-with+0.5)/(with+0.5))
}

func (x *Index) frequency(p posting) float64 {
	count := float64(p.count)
	average := float64(x.words) / float64(len(x.lengths))
	length := 1 - lengthBias + lengthBias*float64(x.lengths[p.text])/average
	return count * (saturation + 1) / (count + saturation*length)
}
