package network

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar"
)

// Counters are what the eth0 of a Machine has received and sent since it was attached, as counted by
// the host's end of the pair.
type Counters struct{ Received, Sent Direction }

// Direction is one direction of a device. Errors, Dropped and FIFO count packets.
type Direction struct{ Bytes, Packets, Errors, Dropped, FIFO, Compressed uint64 }

// Counters returns the counters of all attached Machines with a single read of a kernel file.
func (n *Network) Counters() (map[hangar.MachineID]Counters, error) {
	// /proc/self is the first thread's, which may be in the namespace of a Machine.
	raw, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return nil, fmt.Errorf("read counters of network devices: %w", err)
	}
	machines := n.attachments.links()
	all := make(map[hangar.MachineID]Counters, len(machines))
	for line := range strings.Lines(string(raw)) {
		name, rest, ok := strings.Cut(line, ":")
		if !ok {
			continue // the titles
		}
		id, ok := machines[strings.TrimSpace(name)]
		if !ok {
			continue
		}
		if all[id], err = parseCounters(rest); err != nil {
			return nil, fmt.Errorf("read counters of %s: %w", name, err)
		}
	}
	return all, nil
}

// parseCounters reads a line of /proc/net/dev about the host's end of a pair: what this end has sent,
// the Machine has received.
func parseCounters(text string) (Counters, error) {
	const columns = 16 // of receive and transmit, half each; see proc_pid_net(5)
	var c [columns]uint64
	fields := strings.Fields(text)
	if len(fields) < columns {
		return Counters{}, errors.New("too few columns")
	}
	for i := range c {
		var err error
		if c[i], err = strconv.ParseUint(fields[i], 10, 64); err != nil {
			return Counters{}, err
		}
	}
	return Counters{
		Received: Direction{Bytes: c[8], Packets: c[9], Errors: c[10], Dropped: c[11], FIFO: c[12], Compressed: c[15]},
		Sent:     Direction{Bytes: c[0], Packets: c[1], Errors: c[2], Dropped: c[3], FIFO: c[4], Compressed: c[6]},
	}, nil
}

// links are the devices of complete attachments, and their Machines.
func (a *attachments) links() map[string]hangar.MachineID {
	a.mu.Lock()
	attached := maps.Clone(a.attached)
	a.mu.Unlock()
	links := make(map[string]hangar.MachineID, len(attached))
	for id, at := range attached {
		links[at.link] = id
	}
	return links
}
