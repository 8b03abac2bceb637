package probe

import (
	"errors"
	"fmt"
	"time"
)

// Beyond is a time that is safely longer than a limit of the server.
func Beyond(limit time.Duration) time.Duration {
	return limit + min(max(limit/10, 100*time.Millisecond), 5*time.Second)
}

// JudgeWindow judges the rules about the end of the retry window. They share one
// wait: their ids are closed together.
func (c Sessions) JudgeWindow(length time.Duration, needs []func() string) {
	c.JudgeTogether([]Rule{
		{Name: "window-holds", Text: "Until shortly before the end of the retry window a closed id cannot be seeded.", Needs: needs},
		{Name: "window-ends", Text: "After the retry window a closed id can be seeded anew, also one that was never seeded.", Needs: needs},
		{Name: "repeated-close-does-not-renew", Text: "A repeated close does not make the retry window longer.", Needs: needs},
	}, func(t []*Trial) []error {
		holds, ends, renews := c.throughWindow(length, t[0], t[1], t[2])
		if renews != nil && (ends != nil || holds != nil) {
			renews = Skip("the window is not as long as it should be; see rules window-holds and window-ends")
		}
		return []error{holds, ends, renews}
	})
}

func (c Sessions) throughWindow(length time.Duration, holding, ending, renewing *Trial) (holds, ends, renews error) {
	began := time.Now()
	var ids []*Session
	for _, t := range []*Trial{holding, ending, renewing} {
		s, err := c.Closed(t)
		if err != nil {
			return err, err, err
		}
		ids = append(ids, s)
	}
	unknown := ending.NewSession()
	unknownClosed := ending.Close(unknown).OK() // else rule close-unknown has its fault
	repeat, nearEnd, end := length*2/3, length*9/10, Beyond(length)
	err := c.Sleep(repeat)
	for _, repeated := range []Reply{renewing.Close(ids[2]), renewing.CloseAlone(ids[2])} {
		if !repeated.OK() {
			renews = c.Blame("close-repeated", fmt.Errorf("the repeated close got %s", repeated))
		}
	}
	err = errors.Join(err, c.Sleep(nearEnd-repeat))
	holds = c.Blame("late-seed", c.Conflict("window-holds", c.SendSeed(holding, ids[0]), "the seed shortly before the end"))
	if holds != nil && c.timed && time.Since(began) >= length {
		holds = Skip("the server answers too slowly for so short a window")
	}
	if err = errors.Join(err, c.Sleep(end-nearEnd)); err != nil {
		return err, err, err
	}
	ends = c.SendSeed(ending, ids[1]).Want("the seed after the window", 200)
	if ends == nil && unknownClosed {
		ends = c.SendSeed(ending, unknown).Want("the seed after the window of an id that was closed and never seeded", 200)
	}
	if renews == nil {
		renews = c.SendSeed(renewing, ids[2]).Want("the seed after the window of the first close", 200)
	}
	return holds, ends, renews
}
