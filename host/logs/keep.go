package logs

import (
	"context"
	"log/slog"
	"os"
	"strings"

	"github.com/hangar-platform/hangar"
)

// keptName is the name under which the keeper holds a Machine's FIFO. Neither part contains a slash.
func keptName(ref hangar.MachineRef) string { return string(ref.AppID) + "/" + string(ref.ID) }

// hold makes the keeper hold the FIFO of a capture.
func (s *Store) hold(ref hangar.MachineRef, c *capture) {
	if s.keeper != nil {
		s.keeper.Hold(keptName(ref), c.path, c.fifo)
	}
}

// drop makes the keeper close a Machine's FIFO.
func (s *Store) drop(ref hangar.MachineRef) {
	if s.keeper != nil {
		s.keeper.Drop(keptName(ref))
	}
}

// inherit captures every FIFO that an earlier daemon left with the keeper, even if its Machine has
// stopped: the FIFO is then released, and Release copies the rest.
func (s *Store) inherit(ctx context.Context) {
	if s.keeper == nil {
		return
	}
	for _, e := range s.keeper.Inherited() {
		app, id, _ := strings.Cut(e.Name, "/")
		ref := hangar.MachineRef{AppID: hangar.AppID(app), ID: hangar.MachineID(id)}
		if _, err := os.Stat(e.Path); err != nil { // its content cannot be reached
			s.drop(ref)
			continue
		}
		if err := s.Capture(ref, e.Path); err != nil {
			s.log.ErrorContext(ctx, "output that a machine left cannot be captured", slog.String("app", app),
				slog.String("machine", id), slog.Any("error", err))
		}
	}
}
