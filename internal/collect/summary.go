package collect

import (
	"slices"
	"strings"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
)

// A Summary is what came out of a run.
type Summary struct {
	Owed     int // rollouts that the dataset asks for
	Done     int // with a result, masked ones included
	Masked   int // with a result that is to be left out of scores
	Failed   int // without a result, after their last attempt
	TimedOut int // of those done in this run, whose agents ran out of time
	// FailedForGood is how many of those failed had a terminal failure: a further
	// attempt could not help.
	FailedForGood int
	Attempts      int // in all rollouts together

	rewards  float64 // the sum over results that are not masked
	failures map[FailureGroup]*FailureCount
	times    []time.Duration
}

// A FailureGroup is what failures are counted by.
type FailureGroup struct {
	Stage failures.Stage
	Kind  failures.Kind
}

// Missing is how many rollouts have neither a result nor a failure.
func (s Summary) Missing() int { return s.Owed - s.Done - s.Failed }

// Scored is how many results are not masked.
func (s Summary) Scored() int { return s.Done - s.Masked }

// Mean is the mean reward over the results that are not masked; ok is false when
// there are none. A masked or failed sample is no zero.
func (s Summary) Mean() (mean float64, ok bool) {
	if s.Scored() == 0 {
		return 0, false
	}
	return s.rewards / float64(s.Scored()), true
}

// A FailureCount is how many rollouts failed in one way.
type FailureCount struct {
	FailureGroup
	Count   int
	Example string // the reason of one of them
}

// Failures are the rollouts without a result by stage and kind, most first.
func (s Summary) Failures() []FailureCount {
	counts := make([]FailureCount, 0, len(s.failures))
	for _, count := range s.failures {
		counts = append(counts, *count)
	}
	slices.SortFunc(counts, func(a, b FailureCount) int {
		if a.Count != b.Count {
			return b.Count - a.Count
		}
		return strings.Compare(string(a.Stage+" ")+string(a.Kind), string(b.Stage+" ")+string(b.Kind))
	})
	return counts
}

// Quantile is the time that the given part of the attempts took at most, 0 when
// there were none.
func (s Summary) Quantile(part float64) time.Duration {
	if len(s.times) == 0 {
		return 0
	}
	times := slices.Sorted(slices.Values(s.times))
	return times[min(int(part*float64(len(times))), len(times)-1)]
}

// add counts a rollout by its last attempt.
func (s *Summary) add(last episode.Attempt, attempts int) {
	s.Attempts += attempts
	s.times = append(s.times, last.Took)
	switch {
	case last.Result != nil:
		s.addResult(result{reward: last.Result.Reward, masked: last.Result.Masked})
		if last.Result.AgentTimedOut {
			s.TimedOut++
		}
	case !last.Unsettled():
		s.addFailure(FailureGroup{last.Failure.Stage, last.Failure.Kind}, last.Failure.Reason, last.Failure.Terminal)
	}
}

func (s *Summary) addResult(r result) {
	s.Done++
	if r.masked {
		s.Masked++
		return
	}
	s.rewards += r.reward
}

func (s *Summary) addFailure(group FailureGroup, reason string, terminal bool) {
	s.Failed++
	if terminal {
		s.FailedForGood++
	}
	if s.failures == nil {
		s.failures = map[FailureGroup]*FailureCount{}
	}
	if s.failures[group] == nil {
		s.failures[group] = &FailureCount{FailureGroup: group, Example: reason}
	}
	s.failures[group].Count++
}
