package remote

import (
	"encoding/json"
	"sync"

	"github.com/hangar-platform/hangar"
)

// entry is a request of the edge on another host: to be let into a Machine or, in a kindLeave, to
// leave it.
type entry struct {
	ID   uint64            `json:"id"` // the caller's
	Ref  hangar.MachineRef `json:"ref,omitzero"`
	Port int               `json:"port,omitempty"`
}

// refusal is the answer to an entry that was not let in.
type refusal struct {
	ID uint64 `json:"id"`
	fault
}

// line is one for the log of a Machine.
type line struct {
	Ref     hangar.MachineRef `json:"ref"`
	Level   string            `json:"level"`
	Message string            `json:"message"`
}

// enter lets requests of the edge on another host in and out, for as long as the exchange lasts.
// Then all that are in have left: their connections are gone as well.
func (h *Handler) enter(x *served) {
	inside := map[uint64]func(){}
	defer func() {
		for _, leave := range inside {
			leave()
		}
	}()
	if x.control.Flush() != nil {
		return
	}
	out := newBatch(x.out)
	var sending sync.WaitGroup
	sending.Go(out.run)
	_ = x.frames(func(k kind, payload []byte) error {
		switch k {
		case kindEnter:
			var in entry
			if err := json.Unmarshal(payload, &in); err != nil {
				return err
			}
			leave, err := h.gate.EnterMachine(in.Ref, in.Port)
			if err != nil {
				return out.add(kindRefused, refusal{in.ID, faultOf(err)})
			}
			inside[in.ID] = leave
			return out.add(kindEntered, entry{ID: in.ID})
		case kindLeave:
			var in entry
			if err := json.Unmarshal(payload, &in); err != nil {
				return err
			}
			if leave := inside[in.ID]; leave != nil {
				delete(inside, in.ID)
				leave()
			}
		case kindLog:
			var l line
			if err := json.Unmarshal(payload, &l); err != nil {
				return err
			}
			h.gate.LogEdge(l.Ref, l.Level, l.Message)
		default: // of a later version
		}
		return nil
	})
	out.close()
	x.abort()
	sending.Wait()
}
