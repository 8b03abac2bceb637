package environments

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"example.com/turn/servers/environments/internal/filing"
	"example.com/turn/servers/requests"
)

// A savedReading is a session as a snapshot has it. The index is built anew of the
// filings' names, and the time that the session is not open does not count.
type savedReading struct {
	Task       json.RawMessage  `json:"task_data"`
	Used       float64          `json:"used_seconds"`
	Parsed     []string         `json:"parsed"`
	Failed     []string         `json:"unreadable_asked_for"`
	Submission *submittedFigure `json:"submission"`
}

func (room *readingRoom) save(r *reading) (any, error) {
	return savedReading{
		Task:       r.task.data,
		Used:       room.used(r).Seconds(),
		Parsed:     r.parsed,
		Failed:     r.failed,
		Submission: r.submission,
	}, nil
}

func (room *readingRoom) restore(_ context.Context, state json.RawMessage) (*reading, error) {
	var saved savedReading
	if err := json.Unmarshal(state, &saved); err != nil {
		return nil, fmt.Errorf("its state is no reading: %w", err)
	}
	task, err := room.readTask(requests.Read(saved.Task, "task_data"))
	if err != nil {
		return nil, err
	}
	if saved.Used < 0 || saved.Used > maxFilingSeconds {
		return nil, fmt.Errorf("its used_seconds are %v", saved.Used)
	}
	r := &reading{task: task, failed: saved.Failed, submission: saved.Submission}
	if err := r.submission.check(); err != nil {
		return nil, fmt.Errorf("its submission: %w", err)
	}
	r.began = room.clock().Add(-time.Duration(saved.Used * float64(time.Second)))
	for _, name := range saved.Parsed {
		parsed, ok := room.filings[name]
		if !ok {
			return nil, fmt.Errorf("it has parsed %q, which is no filing here", name)
		}
		r.take(name, parsed)
	}
	return r, nil
}

// check is of a submission that was not made here.
func (s *submittedFigure) check() error {
	if s == nil || s.Unit == "" {
		return nil
	}
	if _, err := filing.ParseUnit(s.Unit); err != nil {
		return fmt.Errorf("the unit %q %w", s.Unit, err)
	}
	return nil
}
