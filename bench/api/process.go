package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/bench/harness"
)

// tick is the unit of processor times in /proc.
const tick = 10 * time.Millisecond

// processorTime is what processes have spent so far, in user and kernel mode.
func processorTime(pids []int) (time.Duration, error) {
	var sum time.Duration
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		_, rest, _ := strings.Cut(string(raw), ") ") // behind the name, which may hold anything
		fields := strings.Fields(rest)
		for _, f := range fields[11:13] {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read processor time: %w", err)
			}
			sum += time.Duration(n) * tick
		}
	}
	return sum, nil
}

// memory is the resident memory of processes, in bytes.
func memory(pids []int) (int64, error) {
	var sum int64
	for _, pid := range pids {
		raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if err != nil {
			return 0, err
		}
		for line := range strings.Lines(string(raw)) {
			if words := strings.Fields(line); len(words) > 1 && words[0] == "Pss:" { // shared pages count once
				kb, err := strconv.ParseInt(words[1], 10, 64)
				if err != nil {
					return 0, err
				}
				sum += kb << 10
			}
		}
	}
	return sum, nil
}

// otherWork is the share of the processors that was taken in a second in which
// nothing was measured.
func otherWork(ctx context.Context) (float64, error) {
	idle, total, err := harness.Processors()
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-time.After(time.Second):
	}
	idleThen, totalThen, err := harness.Processors()
	return 1 - float64(idleThen-idle)/float64(max(1, totalThen-total)), err
}
