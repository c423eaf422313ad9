package machines

import (
	"context"
	"os"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/host/image"
	"github.com/hangar-platform/hangar/host/journal"
)

// replace installs the new version of a Machine. The old version keeps running until the new image
// is on the host, and stays if that fails.
func (w *worker) replace(ctx context.Context, rec *journal.Record) error {
	img, err := w.pull(ctx, rec)
	if ctx.Err() != nil {
		return errOvertaken
	}
	running := rec.Handle != nil && !rec.Ended
	switch {
	case err != nil && running && rec.Stop != nil:
		// It was restarting when the update arrived, so that its load is already promised.
		return w.endPrevious(ctx, rec)
	case err != nil:
		return w.rollBack(rec, err)
	case running:
		return w.endPrevious(ctx, rec)
	}
	if err := w.clear(ctx, rec); err != nil {
		return err
	}
	if err := os.RemoveAll(w.path(snapshotDir)); err != nil {
		return err
	}
	return w.replaced(rec, img)
}

// endPrevious stops the sandbox of the old version.
func (w *worker) endPrevious(ctx context.Context, rec *journal.Record) error {
	old := *rec
	old.Stop = howToStop(rec.Previous.Config, hangar.MachineStop{})
	exit, err := w.halt(ctx, &old)
	if err != nil {
		return err
	}
	if exit != nil {
		w.noteExit(*exit)
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Handle, next.Ended, next.Stop = nil, false, nil
		if exit == nil {
			return nil
		}
		return []hangar.Event{exitEvent(*exit, true, true, 0)}
	})
}

func (w *worker) replaced(rec *journal.Record, img *image.Image) error {
	launch := rec.Previous.State == hangar.MachineStarted && !rec.SkipLaunch
	if !launch {
		w.note("info", "machine was in a non-started state prior to the update so leaving the new version stopped")
	}
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		next.Previous, next.Handle, next.Ended, next.Stop = nil, nil, false, nil
		next.Prepared = true
		next.FreshVersion = true
		next.KeepRoot = false
		next.Machine.ImageRef = img.Ref
		dropSnapshot(next)
		if launch {
			next.Machine.State = hangar.MachineStarting
		} else {
			next.Machine.State = hangar.MachineStopped
		}
		return []hangar.Event{{Type: hangar.EventLaunch, Source: hangar.SourceUser}}
	})
}

// rollBack returns to the version before a failed update.
func (w *worker) rollBack(rec *journal.Record, cause error) error {
	w.note("error", "Failed to update, keeping the version before: %s", hangar.MessageOf(cause))
	return w.advance(rec, func(next *journal.Record) []hangar.Event {
		before := next.Previous
		next.Previous = nil
		next.AnyRegistry = before.AnyRegistry
		next.Machine.State = before.State
		next.Machine.Config, next.Machine.InstanceID, next.Machine.ImageRef = before.Config, before.InstanceID, before.ImageRef
		next.Machine.Cordoned = before.Cordoned
		next.Machine.SecretsVersion = before.SecretsVersion
		next.Stop = nil
		if before.State == hangar.MachineStarted && (next.Handle == nil || next.Ended) {
			next.Machine.State = hangar.MachineStarting
		}
		return []hangar.Event{failure(hangar.EventUpdate, cause)}
	})
}
