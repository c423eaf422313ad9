package cli

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

func TestEveryCodeOfTheLanguageHasAnExitCode(t *testing.T) {
	t.Parallel()
	for _, code := range hangar.Codes() {
		if _, ok := exitCodes[code]; !ok {
			t.Errorf("no exit code for %s", code)
		}
	}
	if got := codeFor(fmt.Errorf("x: %w", context.DeadlineExceeded)); got != ExitTimeout {
		t.Errorf("a deadline exits with %d", got)
	}
}

func TestInterruptedIsNoError(t *testing.T) {
	t.Parallel()
	var stderr strings.Builder
	c := &Invocation{Streams: Streams{Stderr: &stderr}, parsed: true}
	if code := c.report(nil, WithHint(context.Canceled, "it continues by itself")); code != ExitInterrupted {
		t.Errorf("exit code %d", code)
	}
	if got := stderr.String(); got != "Interrupted.\nNext: it continues by itself\n" {
		t.Errorf("%q", got)
	}
}
