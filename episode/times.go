package episode

import (
	"time"

	"example.com/turn/failures"
)

// Times are how long the stages of an attempt took. A stage that did not begin has
// taken none.
type Times struct {
	Seed         time.Duration // call 1
	Agent        time.Duration // calls 3 and 4
	Cleanup      time.Duration // call 5
	Verification time.Duration // call 6
}

// Of is the time of a stage; ok is false when it did not begin, or is none that
// takes time.
func (t Times) Of(stage failures.Stage) (took time.Duration, ok bool) {
	if field := t.field(stage); field != nil {
		took = *field
	}
	return took, took > 0
}

func (t *Times) field(stage failures.Stage) *time.Duration {
	switch stage {
	case failures.StageSeed:
		return &t.Seed
	case failures.StageAgent:
		return &t.Agent
	case failures.StageCleanup:
		return &t.Cleanup
	case failures.StageVerification:
		return &t.Verification
	}
	return nil
}

// begin counts the time from now until the function that it returns is called.
func (t *Times) begin(stage failures.Stage) (end func()) {
	began, field := time.Now(), t.field(stage)
	return func() { *field += time.Since(began) }
}
