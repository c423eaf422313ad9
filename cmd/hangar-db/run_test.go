package main

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/hangar-platform/hangar/replica/config"
)

// TestStoppedPrograms: the exit status of a program that was asked to end is its own, so that what was interrupted
// does not look done. The commands of a mount end with it in order.
func TestStoppedPrograms(t *testing.T) {
	for script, want := range map[string]error{
		`trap "exit 3" TERM; touch "$0"; while :; do sleep 0.01; done`: exitStatus(3),
		`trap "exit 0" TERM; touch "$0"; while :; do sleep 0.01; done`: nil,
		`touch "$0"; exec sleep 60`:                                    exitStatus(128 + 15),
	} {
		stop := func(run func(ctx context.Context, words []string) error) error {
			begun := t.TempDir() + "/begun"
			ctx, end := context.WithCancel(t.Context())
			defer end()
			go func() {
				for {
					if _, err := os.Stat(begun); err == nil || ctx.Err() != nil {
						end()
						return
					}
					time.Sleep(time.Millisecond) // no event reports it
				}
			}()
			return run(ctx, []string{"sh", "-c", script, begun})
		}
		if err := stop(runProgram); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", script, err, want)
		}
		err := stop(func(ctx context.Context, words []string) error {
			return runAll(ctx, &config.Config{Exec: config.Exec{{}}}, words)
		})
		if err != nil {
			t.Errorf("%s, of a mount: %v", script, err)
		}
	}
}
