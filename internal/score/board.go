package score

import (
	"iter"
	"maps"
	"math"
	"slices"
)

// Passing is the reward from which a sample counts as passed in pass@k.
const Passing = 1.0

// A Board holds the samples of a run, by task. Its zero value has none.
type Board struct {
	tasks   map[int64]group
	samples int
	sum     float64
}

// A group is the samples of one task.
type group struct {
	samples int32
	passed  int32
	sum     float64
}

// Add adds a sample of a task.
func (b *Board) Add(task int64, reward float64) {
	if b.tasks == nil {
		b.tasks = map[int64]group{}
	}
	g := b.tasks[task]
	g.samples++
	if reward >= Passing {
		g.passed++
	}
	g.sum += reward
	b.tasks[task] = g
	b.samples++
	b.sum += reward
}

// Samples is how many samples there are.
func (b *Board) Samples() int { return b.samples }

// A Group is the samples of one task.
type Group struct {
	Samples int
	Mean    float64
}

// Tasks yields the tasks that have a sample, in their order.
func (b *Board) Tasks() iter.Seq2[int64, Group] {
	return func(yield func(int64, Group) bool) {
		for _, task := range b.inOrder() {
			g := b.tasks[task]
			if !yield(task, Group{Samples: int(g.samples), Mean: g.sum / float64(g.samples)}) {
				return
			}
		}
	}
}

// A Mean is the mean reward of all samples.
type Mean struct {
	Value   float64
	Samples int
	Tasks   int
	// Low and High are the ends of its 95 % interval. Bounded is false when there
	// is none: one task does not tell how much tasks differ.
	Low, High float64
	Bounded   bool
}

// Mean is the mean reward, with an interval that takes the samples of one task to
// depend on each other (the cluster-robust standard error, and Student's t with
// one degree of freedom less than there are tasks). ok is false when there is no
// sample, and when rewards are too large for a sum.
func (b *Board) Mean() (mean Mean, ok bool) {
	if b.samples == 0 || math.IsInf(b.sum, 0) || math.IsNaN(b.sum) {
		return Mean{}, false
	}
	mean = Mean{Value: b.sum / float64(b.samples), Samples: b.samples, Tasks: len(b.tasks)}
	var squares float64
	for _, task := range b.inOrder() {
		g := b.tasks[task]
		off := g.sum - float64(g.samples)*mean.Value
		squares += off * off
	}
	n, tasks := float64(b.samples), float64(len(b.tasks))
	if len(b.tasks) < 2 || math.IsInf(squares, 0) {
		return mean, true
	}
	half := quantile95(len(b.tasks)-1) * math.Sqrt(squares*tasks/(tasks-1)) / n
	mean.Low, mean.High, mean.Bounded = mean.Value-half, mean.Value+half, true
	return mean, true
}

// inOrder are the tasks in an order that does not change from run to run: nor does
// a sum of floats over them.
func (b *Board) inOrder() []int64 { return slices.Sorted(maps.Keys(b.tasks)) }

// quantile95 is the 0.975 quantile of Student's t distribution, to three digits.
func quantile95(freedom int) float64 {
	table := [...]float64{
		12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
		2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
		2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
	}
	if freedom <= len(table) {
		return table[freedom-1]
	}
	// The first terms of its series in 1/freedom (Abramowitz and Stegun, 26.7.5), off
	// by less than 0.0001 from 30 on.
	const z = 1.959964 // of the normal distribution
	n := float64(freedom)
	return z + (z*z*z+z)/(4*n) + (5*z*z*z*z*z+16*z*z*z+3*z)/(96*n*n)
}

// A Pass is pass@k over the tasks that have k samples.
type Pass struct {
	K     int
	Value float64
	Tasks int // that it is the mean of
	Short int // tasks with a sample, but fewer than k: they are left out
}

// Pass is the mean over tasks of the chance that at least one of k samples drawn
// from the task's passes: 1 - C(n-c, k) / C(n, k) for c of n passed (Chen et al.,
// Evaluating Large Language Models Trained on Code, 2021). ok is false when no
// task has k samples.
func (b *Board) Pass(k int) (pass Pass, ok bool) {
	pass.K = k
	var sum float64
	for _, task := range b.inOrder() {
		g := b.tasks[task]
		if int(g.samples) < k {
			pass.Short++
			continue
		}
		pass.Tasks++
		sum += g.passes(k)
	}
	if pass.Tasks == 0 {
		return pass, false
	}
	pass.Value = sum / float64(pass.Tasks)
	return pass, true
}

// passes is the chance that one of k of the group's samples passed.
func (g group) passes(k int) float64 {
	if int(g.samples-g.passed) < k {
		return 1 // too few failed for a draw without one that passed
	}
	none := 1.0 // the chance that none did
	for i := int(g.samples-g.passed) + 1; i <= int(g.samples); i++ {
		none *= 1 - float64(k)/float64(i)
	}
	return 1 - none
}
