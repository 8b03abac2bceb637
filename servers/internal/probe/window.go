package probe

import (
	"errors"
	"fmt"
	"time"
)

// A Window is how long a server remembers closed ids, and how to seed one.
type Window struct {
	Length time.Duration
	Needs  []func() string
	Seed   func(*Trial, *Session) Reply
}

// Beyond is a time that is safely longer than a limit of the server.
func Beyond(limit time.Duration) time.Duration {
	return limit + min(max(limit/10, 100*time.Millisecond), 5*time.Second)
}

// JudgeWindow judges the rules about the end of the retry window. They share one
// wait: their ids are closed together.
func (r *Run) JudgeWindow(w Window) {
	r.JudgeTogether([]Rule{
		{Name: "window-holds", Text: "Until shortly before the end of the retry window a closed id cannot be seeded.", Needs: w.Needs},
		{Name: "window-ends", Text: "After the retry window a closed id can be seeded anew, also one that was never seeded.", Needs: w.Needs},
		{Name: "repeated-close-does-not-renew", Text: "A repeated close does not make the retry window longer.", Needs: w.Needs},
	}, func(t []*Trial) []error {
		holds, ends, renews := r.throughWindow(w, t[0], t[1], t[2])
		if renews != nil && (ends != nil || holds != nil) {
			renews = Skip("the window is not as long as it should be; see rules window-holds and window-ends")
		}
		return []error{holds, ends, renews}
	})
}

func (r *Run) throughWindow(w Window, holding, ending, renewing *Trial) (holds, ends, renews error) {
	began := time.Now()
	var ids []*Session
	for _, t := range []*Trial{holding, ending, renewing} {
		s, err := r.closed(w, t)
		if err != nil {
			return err, err, err
		}
		ids = append(ids, s)
	}
	unknown := ending.NewSession()
	unknownClosed := ending.Close(unknown).OK() // else rule close-unknown has its fault
	repeat, nearEnd, end := w.Length*2/3, w.Length*9/10, Beyond(w.Length)
	err := r.Sleep(repeat)
	for _, repeated := range []Reply{renewing.Close(ids[2]), renewing.CloseAlone(ids[2])} {
		if !repeated.OK() {
			renews = r.Blame("close-repeated", fmt.Errorf("the repeated close got %s", repeated))
		}
	}
	err = errors.Join(err, r.Sleep(nearEnd-repeat))
	holds = r.Blame("late-seed", w.Seed(holding, ids[0]).Want("the seed shortly before the end", 409))
	if holds != nil && r.timed && time.Since(began) >= w.Length {
		holds = Skip("the server answers too slowly for so short a window")
	}
	if err = errors.Join(err, r.Sleep(end-nearEnd)); err != nil {
		return err, err, err
	}
	ends = w.Seed(ending, ids[1]).Want("the seed after the window", 200)
	if ends == nil && unknownClosed {
		ends = w.Seed(ending, unknown).Want("the seed after the window of an id that was closed and never seeded", 200)
	}
	if renews == nil {
		renews = w.Seed(renewing, ids[2]).Want("the seed after the window of the first close", 200)
	}
	return holds, ends, renews
}

func (r *Run) closed(w Window, t *Trial) (*Session, error) {
	s := t.NewSession()
	if reply := w.Seed(t, s); !reply.OK() {
		return nil, fmt.Errorf("a session to check it with could not be opened: %s", reply)
	}
	if reply := t.Close(s); !reply.OK() {
		return nil, r.Blame("close", fmt.Errorf("a session to check it with could not be closed: %s", reply))
	}
	return s, nil
}
