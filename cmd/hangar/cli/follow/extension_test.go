package follow

import (
	"context"
	"testing"
	"time"

	"github.com/hangar-platform/hangar"
)

// scriptedExtension is an extension with scripted progress.
type scriptedExtension struct {
	hangar.ExtensionService
	scripted
	steps []step[hangar.Extension]
}

func (s *scriptedExtension) Extension(context.Context, hangar.AppName, string) (*hangar.Extension, error) {
	return at(&s.scripted, s.steps)
}

// TestFollowExtension: the wait outlives a restart of the daemon, and ends with its time.
func TestFollowExtension(t *testing.T) {
	t.Parallel()
	begun := hangar.Extension{App: "web", Name: "logs", Status: hangar.ExtensionProvisioning}
	ready := begun
	ready.Status = hangar.ExtensionReady
	for name, test := range map[string]struct {
		patience time.Duration
		want     hangar.ExtensionStatus
	}{"is created": {time.Minute, ready.Status}, "takes longer": {10 * time.Second, begun.Status}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T) {
				s := &scriptedExtension{scripted: scripted{began: time.Now()}, steps: []step[hangar.Extension]{
					{0, begun, nil}, {time.Second, begun, hangar.Errorf(hangar.CodeUnavailable, "", "away")}, {20 * time.Second, ready, nil},
				}}
				got, err := Extension(t.Context(), s, &begun, test.patience)
				if err != nil || got.Status != test.want {
					t.Errorf("%+v, %v", got, err)
				}
			})
		})
	}
}
