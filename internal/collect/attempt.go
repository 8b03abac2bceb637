package collect

import (
	"context"
	"fmt"
	"time"

	"example.com/turn/episode"
	"example.com/turn/failures"
	"example.com/turn/protocol"
)

// An attempt is one that has ended.
type attempt struct {
	turn  turn
	began time.Time
	episode.Attempt
	err error // its line could not be written
}

// start has an attempt driven, and its line written. The line of the inputs is that
// of its rollout.
func (c *collector) start(ctx context.Context, line input, t turn) error {
	request, err := c.queue.rows.request(line)
	if err != nil {
		return err
	}
	request.EpisodeID.Attempt = int64(t.attempts)
	c.summary.Attempts++
	again := t.retry
	if again {
		c.summary.Retries++
	}
	t.retry = true
	c.config.Observer.Began(rolloutOf(request.TaskID, t.key), again)
	c.drive(ctx, job{request, t})
	return nil
}

// A job is an attempt to drive.
type job struct {
	request *episode.Request
	turn    turn
}

// drive gives a job to a worker that is free, or to a new one. Workers stay for the next
// job: their stacks have grown to what an episode takes.
func (c *collector) drive(ctx context.Context, j job) {
	c.inFlight++
	select {
	case c.jobs <- j:
		return
	default:
	}
	c.workers.Go(func() {
		for ok := true; ok; j, ok = <-c.jobs {
			c.ended <- c.do(ctx, j)
		}
	})
}

// do drives an attempt, and has its line written.
func (c *collector) do(ctx context.Context, j job) attempt {
	began := time.Now()
	reply := c.attempt(ctx, j.request)
	ended := attempt{turn: j.turn, began: began, Attempt: episode.Attempt{Reply: reply, Took: time.Since(began)}}
	ended.err = c.write(ended)
	return ended
}

// attempt has the target drive an attempt. A bug in it is the attempt's failure.
func (c *collector) attempt(ctx context.Context, r *episode.Request) (reply episode.Reply) {
	defer func() {
		if bug := recover(); bug != nil {
			reply = episode.Reply{EpisodeID: r.EpisodeID, TaskID: r.TaskID, Failure: failures.New("", "", fmt.Sprintf("Unhandled error of this run: %v", bug))}
			reply.Failure.Terminal = true
		}
	}()
	return c.config.Target.Attempt(ctx, r)
}

func rolloutOf(id protocol.TaskID, k key) Rollout {
	return Rollout{TaskID: id, TaskIndex: k.task, RolloutIndex: k.rollout}
}

// write writes the line of an attempt. One that was cut short has none.
func (c *collector) write(a attempt) error {
	server, err := c.config.Target.Server(a.TaskID.Taskset)
	switch {
	case err != nil:
		return err
	case a.Result != nil:
		return c.writer.result(resultLine(a.turn.key, server, a.Reply))
	case a.Failure.CutShort():
		return nil
	}
	return c.writer.failure(failureLine(a.turn.key, server, a.Reply, c.config.Target.Delivery(a.Failure), a.Took))
}
