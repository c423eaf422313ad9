package main

import (
	"net/http"

	"go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/provider"
)

// maxEvents bounds the events that the store remembers.
const maxEvents = 1000

// receive handles an event of one of the provider's own Machines. An event may arrive more than once.
func (v *server) receive(w http.ResponseWriter, r *http.Request) {
	e, err := provider.ReadMachineEvent(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	fresh, err := v.store.remember(e.Source + " " + e.ID)
	if err != nil {
		v.failed(w, r, err)
		return
	}
	if fresh {
		v.log.Info("machine event", "machine", e.MachineID, "event", e.Name(), "status", e.Status)
	}
	w.WriteHeader(http.StatusNoContent)
}

// remember records an event, and reports whether it was new. When the bucket is full, it drops the first key: the
// oldest event of its source, because the ids of a source ascend.
func (s *store) remember(id string) (fresh bool, err error) {
	err = s.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(seen)
		fresh = b.Get([]byte(id)) == nil
		if !fresh {
			return nil
		}
		if b.Stats().KeyN >= maxEvents {
			if err := b.Delete(first(b)); err != nil {
				return err
			}
		}
		return b.Put([]byte(id), []byte{})
	})
	return fresh, err
}

func first(b *bbolt.Bucket) []byte {
	k, _ := b.Cursor().First()
	return k
}
