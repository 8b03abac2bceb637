//go:build linux

package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/metrics"

	"example.com/turn/agentclient"
	"example.com/turn/episode"
	"example.com/turn/resourcesclient"
)

// runLibrary has a driver run the episodes.
func runLibrary(w work) error {
	driver, err := episode.NewDriver(episode.Config{
		Resources: resourcesclient.Config{URL: w.URL},
		Agent:     agentclient.Config{URL: w.URL},
	})
	if err != nil {
		return err
	}
	defer driver.Close()
	request, err := episode.ParseRequest([]byte(runBody))
	if err != nil {
		return err
	}
	run := func() error {
		if f := driver.Run(context.Background(), request).Failure; f != nil {
			return fmt.Errorf("an episode failed: %w", f)
		}
		return nil
	}
	if w.Watch {
		return watchHeap(w, run)
	}
	return repeat(w, run)
}

// watchHeap runs episodes while the heap is collected over and over, and prints how
// much was found alive at most.
func watchHeap(w work, run func() error) error {
	if _, err := together(w.InFlight, w.Warmup, run); err != nil {
		return err
	}
	before, peak := liveHeap(), int64(0)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				peak = max(peak, liveHeap()-before)
			}
		}
	}()
	took, err := together(w.InFlight, w.Episodes, func() error {
		defer runtime.GC() // a collection that spans two episodes would count both
		return run()
	})
	close(stop)
	<-stopped
	if err != nil {
		return err
	}
	return spent{Episodes: len(took), PeakHeap: peak}.print()
}

// liveHeap is what a collection of the heap finds alive.
func liveHeap() int64 {
	runtime.GC()
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return int64(sample[0].Value.Uint64())
}
