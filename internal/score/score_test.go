package score_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"example.com/turn/internal/score"
)

// board has the given rewards, a list for each task.
func board(tasks ...[]float64) *score.Board {
	b := &score.Board{}
	for task, rewards := range tasks {
		for _, reward := range rewards {
			b.Add(int64(task), reward)
		}
	}
	return b
}

func near(a, b float64) bool { return math.Abs(a-b) < 1e-3 }

func TestMean(t *testing.T) {
	for _, test := range []struct {
		name  string
		board *score.Board
		want  score.Mean
		ok    bool
	}{
		{"no sample", board(), score.Mean{}, false},
		{"one sample", board([]float64{0.5}), score.Mean{Value: 0.5, Samples: 1, Tasks: 1}, true},
		{"one task tells nothing of others", board([]float64{0, 1, 1}), score.Mean{Value: 2.0 / 3, Samples: 3, Tasks: 1}, true},
		// s = 0.57735, s/√3 = 1/3, t(2) = 4.303
		{"one sample a task: s/√n", board([]float64{1}, []float64{1}, []float64{0}), score.Mean{Value: 2.0 / 3, Samples: 3, Tasks: 3, Low: 2.0/3 - 4.303/3, High: 2.0/3 + 4.303/3, Bounded: true}, true},
		// Task sums off by +1 and -1: √(2·2/1)/4 = 0.5, t(1) = 12.706
		{"samples of one task are no news", board([]float64{1, 1}, []float64{0, 0}), score.Mean{Value: 0.5, Samples: 4, Tasks: 2, Low: 0.5 - 6.353, High: 0.5 + 6.353, Bounded: true}, true},
		{"all alike", board([]float64{1}, []float64{1}), score.Mean{Value: 1, Samples: 2, Tasks: 2, Low: 1, High: 1, Bounded: true}, true},
		{"a sum past all floats", board([]float64{math.MaxFloat64}, []float64{math.MaxFloat64}), score.Mean{}, false},
		{"squares past all floats", board([]float64{1e300}, []float64{0}), score.Mean{Value: 5e299, Samples: 2, Tasks: 2}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := test.board.Mean()
			if ok != test.ok || !near(got.Value/max(1, test.want.Value), test.want.Value/max(1, test.want.Value)) || got.Samples != test.want.Samples ||
				got.Tasks != test.want.Tasks || got.Bounded != test.want.Bounded || !near(got.Low, test.want.Low) || !near(got.High, test.want.High) {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, test.want, test.ok)
			}
		})
	}
}

// With many tasks the interval is that of the normal distribution.
func TestTheIntervalOfManyTasks(t *testing.T) {
	b := &score.Board{}
	for task := range int64(10_000) {
		b.Add(task, float64(task%2))
	}
	mean, _ := b.Mean()
	if half := (mean.High - mean.Low) / 2; !near(half*100, 1.96*0.5) {
		t.Errorf("the interval is ± %g, want 1.96 · 0.5/100", half)
	}
}

// The table of Student's t goes over into its series.
func TestTheIntervalOfSomeTasks(t *testing.T) {
	for tasks, want := range map[int]float64{31: 2.0423, 32: 2.0395, 41: 2.0211, 61: 2.0003, 121: 1.9799} {
		b := &score.Board{}
		for task := range tasks {
			b.Add(int64(task), float64(task))
		}
		mean, _ := b.Mean()
		n := float64(tasks)
		// The standard deviation of 0 to n-1 is √(n(n+1)/12).
		if got := (mean.High - mean.Low) / 2 / math.Sqrt(n*(n+1)/12) * math.Sqrt(n); math.Abs(got-want) > 5e-4 {
			t.Errorf("of %d tasks: t is %.4f, want %.4f", tasks, got, want)
		}
	}
}

func TestPassAtK(t *testing.T) {
	for _, test := range []struct {
		name  string
		board *score.Board
		k     int
		want  score.Pass
		ok    bool
	}{
		{"no sample", board(), 1, score.Pass{K: 1}, false},
		{"pass@1 is the part that passed", board([]float64{1, 0, 0, 0}), 1, score.Pass{K: 1, Value: 0.25, Tasks: 1}, true},
		{"tasks weigh alike", board([]float64{1, 1, 1, 1}, []float64{0}), 1, score.Pass{K: 1, Value: 0.5, Tasks: 2}, true},
		{"less than the whole reward is no pass", board([]float64{0.99}, []float64{1.5}), 1, score.Pass{K: 1, Value: 0.5, Tasks: 2}, true},
		// C(2,2)/C(4,2) = 1/6 for two of four
		{"two of four", board([]float64{1, 1, 0, 0}), 2, score.Pass{K: 2, Value: 5.0 / 6, Tasks: 1}, true},
		{"of very many", board(slices.Repeat([]float64{1}, 3000)), 3000, score.Pass{K: 3000, Value: 1, Tasks: 1}, true},
		{"k of k", board([]float64{0, 0, 1}), 3, score.Pass{K: 3, Value: 1, Tasks: 1}, true},
		{"none passed", board([]float64{0, 0, 0}), 2, score.Pass{K: 2, Tasks: 1}, true},
		{"a task that lost samples is left out and counted", board([]float64{1, 1}, []float64{1}), 2, score.Pass{K: 2, Value: 1, Tasks: 1, Short: 1}, true},
		{"all are short", board([]float64{1}), 2, score.Pass{K: 2, Short: 1}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, ok := test.board.Pass(test.k)
			if ok != test.ok || !near(got.Value, test.want.Value) || got.K != test.want.K || got.Tasks != test.want.Tasks || got.Short != test.want.Short {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, test.want, test.ok)
			}
		})
	}
}

// The estimate is the part of all draws of k samples in which one passed.
func TestPassAtKCountsDraws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		passed := rapid.SliceOfN(rapid.Bool(), 1, 8).Draw(t, "passed")
		k := rapid.IntRange(1, len(passed)).Draw(t, "k")
		b := &score.Board{}
		for _, p := range passed {
			b.Add(0, map[bool]float64{true: 1}[p])
		}
		draws, with := 0, 0
		for set := range 1 << len(passed) {
			size, any := 0, false
			for i, p := range passed {
				if set>>i&1 == 1 {
					size++
					any = any || p
				}
			}
			if size == k {
				draws++
				if any {
					with++
				}
			}
		}
		got, ok := b.Pass(k)
		if want := float64(with) / float64(draws); !ok || math.Abs(got.Value-want) > 1e-9 {
			t.Fatalf("pass@%d of %v is %g, want %g", k, passed, got.Value, want)
		}
	})
}

func TestQuantilesOfTimes(t *testing.T) {
	var times score.Times
	if times.Len() != 0 || times.Quantile(0.5) != 0 {
		t.Error("the zero value has times")
	}
	for i := 1; i <= 100; i++ {
		times.Add(time.Duration(i) * time.Millisecond)
	}
	times.Add(0)
	times.Add(10_000 * time.Hour)
	if got := times.Len(); got != 102 {
		t.Errorf("%d times, want 102", got)
	}
	for part, want := range map[float64]time.Duration{0.25: 25 * time.Millisecond, 0.5: 50 * time.Millisecond, 0.9: 91 * time.Millisecond, 1: 30 * 24 * time.Hour} {
		if got := times.Quantile(part); math.Abs(float64(got-want)) > float64(want)/500+float64(time.Millisecond) {
			t.Errorf("quantile %g is %s, want about %s", part, got, want)
		}
	}
}

// The same samples have the same scores to the last bit: sums are made in one order.
func TestScoresAreTheSameEachTime(t *testing.T) {
	scores := func() (score.Mean, score.Pass) {
		b := &score.Board{}
		for task := range int64(60) {
			for sample := range 3 + task%4 {
				b.Add(task, float64((task+sample)%3)/float64(7+task))
				b.Add(task, float64((task*sample)%2))
			}
		}
		mean, _ := b.Mean()
		pass, _ := b.Pass(2)
		return mean, pass
	}
	mean, pass := scores()
	for range 50 {
		if m, p := scores(); m != mean || p != pass {
			t.Fatalf("%+v and %+v, and once more %+v and %+v", mean, pass, m, p)
		}
	}
}
