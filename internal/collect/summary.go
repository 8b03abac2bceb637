package collect

import (
	"cmp"
	"slices"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/internal/score"
)

// A Summary is what came out of a run, with what the runs that it resumed have left.
type Summary struct {
	Owed     Owed
	Done     int // rollouts with a result, masked ones included
	Masked   int // with a result that is to be left out of scores
	Failed   int // without a result, after their last attempt
	TimedOut int // of those done in this run, whose agents ran out of time
	// FailedForGood is how many of those failed had a terminal failure: a further
	// attempt could not help.
	FailedForGood int
	Attempts      int  // of this run, in all rollouts together
	Retries       int  // of those, how many were not the first of this run at their rollout
	Aggregated    bool // the aggregate metrics are written
	// FailuresAsZero says that failed rollouts are samples with a reward of 0.
	FailuresAsZero bool

	board    score.Board
	failures map[FailureGroup]*FailureCount
	times    score.Times // of attempts that were not cut short
	stages   [len(stagesInOrder)]score.Times
}

// A FailureGroup is what failures are counted by.
type FailureGroup struct {
	Stage failures.Stage
	Kind  failures.Kind
}

// Missing is how many rollouts have neither a result nor a failure.
func (s *Summary) Missing() int { return s.Owed.Rollouts - s.Done - s.Failed }

// Complete reports that every rollout that is owed has a result.
func (s *Summary) Complete() bool { return s.Done == s.Owed.Rollouts }

// Scored is how many samples the scores are of: results that are not masked, and
// failures where they count as zero.
func (s *Summary) Scored() int { return s.board.Samples() }

// Mean is the mean reward with its interval; ok is false when nothing is scored. A
// masked or failed sample is no zero, unless FailuresAsZero says that the latter is.
func (s *Summary) Mean() (mean score.Mean, ok bool) { return s.board.Mean() }

// Pass is pass@k over the tasks that have k samples.
func (s *Summary) Pass(k int) (score.Pass, bool) { return s.board.Pass(k) }

// Times are those of this run's attempts.
func (s *Summary) Times() *score.Times { return &s.times }

// A FailureCount is how many rollouts failed in one way.
type FailureCount struct {
	FailureGroup
	Count   int
	Example string // the reason of one of them
}

// Failures are the rollouts without a result by stage and kind, most first.
func (s *Summary) Failures() []FailureCount {
	counts := make([]FailureCount, 0, len(s.failures))
	for _, count := range s.failures {
		counts = append(counts, *count)
	}
	slices.SortFunc(counts, func(a, b FailureCount) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Stage, b.Stage), cmp.Compare(a.Kind, b.Kind))
	})
	return counts
}

// stagesInOrder are the stages of an episode that take time, in their order.
var stagesInOrder = [...]failures.Stage{failures.StageSeed, failures.StageAgent, failures.StageCleanup, failures.StageVerification}

// Stages yields the stages of an episode in their order, with the times that they
// took in this run's attempts. Of a stage that was never measured there are none.
func (s *Summary) Stages(yield func(failures.Stage, *score.Times) bool) {
	for i, stage := range stagesInOrder {
		if !yield(stage, &s.stages[i]) {
			return
		}
	}
}

// attempted counts an attempt that was not cut short.
func (s *Summary) attempted(took time.Duration, steps episode.Times) {
	s.times.Add(took)
	for i, stage := range stagesInOrder {
		if took, measured := steps.Of(stage); measured {
			s.stages[i].Add(took)
		}
	}
}

func (s *Summary) addResult(task int64, r result) {
	s.Done++
	if r.masked {
		s.Masked++
		return
	}
	s.board.Add(task, r.reward)
}

func (s *Summary) addFailure(task int64, group FailureGroup, reason string, terminal bool) {
	s.Failed++
	if terminal {
		s.FailedForGood++
	}
	if s.FailuresAsZero {
		s.board.Add(task, 0)
	}
	if s.failures == nil {
		s.failures = map[FailureGroup]*FailureCount{}
	}
	if s.failures[group] == nil {
		s.failures[group] = &FailureCount{FailureGroup: group, Example: reason}
	}
	s.failures[group].Count++
}
