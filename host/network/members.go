package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/hangar-platform/hangar"
)

// AddNetwork lets the addresses of the network on this host reach each other. Attach does so for
// Machines; call AddNetwork for every other member, such as a peer, after every Open, and undo it
// with RemoveNetwork.
func (t *filter) AddNetwork(ctx context.Context, id hangar.NetworkID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.join(id)
}

// RemoveNetwork undoes one AddNetwork. The permission ends with the last member.
func (t *filter) RemoveNetwork(ctx context.Context, id hangar.NetworkID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.leave(id)
}

func (t *filter) join(id hangar.NetworkID) error {
	if id == 0 {
		return errors.New("network 0 is the host's own")
	}
	t.membership.Lock()
	defer t.membership.Unlock()
	t.members[id]++
	if t.members[id] > 1 {
		return nil
	}
	err := t.firewall.change(func(c *nftables.Conn) error {
		return c.SetAddElements(t.networks(), networkElements([]hangar.NetworkID{id}))
	})
	if errors.Is(err, unix.ENOENT) { // another program removed the table a moment ago
		err = t.replaceTable()
	}
	if err != nil {
		delete(t.members, id)
		return fmt.Errorf("open network %d: %w", id, err)
	}
	return nil
}

func (t *filter) leave(id hangar.NetworkID) error {
	t.membership.Lock()
	defer t.membership.Unlock()
	switch t.members[id] {
	case 0:
		return nil
	case 1:
		err := t.firewall.change(func(c *nftables.Conn) error {
			return c.SetDeleteElements(t.networks(), networkElements([]hangar.NetworkID{id}))
		})
		if err != nil && !errors.Is(err, unix.ENOENT) { // the table is gone, so the network is closed
			return fmt.Errorf("close network %d: %w", id, err)
		}
		delete(t.members, id)
	default:
		t.members[id]--
	}
	return nil
}

// recount makes the attached Machines the only members.
func (t *filter) recount(attached map[hangar.NetworkID]int) {
	t.membership.Lock()
	defer t.membership.Unlock()
	t.members = attached
}
