package control

import (
	"context"
	"log/slog"

	"golang.org/x/sync/errgroup"

	"github.com/hangar-platform/hangar"
)

// hosts are the agents of all servers.
type hosts struct {
	agents hangar.Agents
	region hangar.Region // of this server
	log    *slog.Logger
}

// unreachable reports whether err says that a host could not be asked, as opposed
// to what it answered.
func unreachable(err error) bool {
	switch hangar.CodeOf(err) {
	case hangar.CodeUnavailable, hangar.CodeTimeout:
		return hangar.ReasonOf(err) == ""
	default:
		return false
	}
}

// agent returns the agent of a host. An unknown host counts as unreachable, because it may have
// been known before and may be known again.
func (h *hosts) agent(id hangar.HostID) (hangar.Agent, error) {
	agent, err := h.agents.Agent(id)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		err = &hangar.Error{Code: hangar.CodeUnavailable, Message: "The host of the machine is not known", Err: err}
	}
	return agent, err
}

// askedAtOnce bounds how many hosts are asked concurrently for one answer.
const askedAtOnce = 64

// bid asks a host for its bid for a Machine.
func (h *hosts) bid(ctx context.Context, id hangar.HostID, ask hangar.MachineAsk) (hangar.MachineBid, error) {
	agent, err := h.agent(id)
	if err != nil {
		return hangar.MachineBid{}, err
	}
	return agent.Bid(ctx, ask)
}

// answer is the answer of a host.
type answer[T any] struct {
	host  hangar.HostID
	value T
	err   error
}

// askAll asks hosts concurrently, and returns their answers in the order of list.
func askAll[T any](h *hosts, list []hangar.Host, ask func(hangar.Agent) (T, error)) []answer[T] {
	answers := make([]answer[T], len(list))
	var group errgroup.Group
	group.SetLimit(askedAtOnce)
	for i, host := range list {
		group.Go(func() error {
			a := &answers[i]
			a.host = host.ID
			agent, err := h.agent(host.ID)
			if err == nil {
				a.value, err = ask(agent)
			}
			a.err = err
			return nil
		})
	}
	_ = group.Wait() // each error is in its answer
	return answers
}

// reached returns the answers of the hosts that can be reached. It returns the first error of one
// of them, and an unreachable host's only if none could be reached.
func reached[T any](h *hosts, answers []answer[T]) ([]T, error) {
	var away error
	var values []T
	for _, a := range answers {
		switch {
		case a.err == nil:
			values = append(values, a.value)
		case !unreachable(a.err):
			return nil, a.err
		default:
			away = a.err
			h.log.Warn("host left out", keyHost, a.host, keyError, a.err)
		}
	}
	if len(values) > 0 {
		return values, nil
	}
	return nil, away
}

// regionHosts are the hosts of a region that may take new Machines. A region
// without any is unknown, unless it is this server's own.
func (h *hosts) regionHosts(region hangar.Region) ([]hangar.Host, error) {
	var hosts []hangar.Host
	for _, h := range h.agents.Hosts() {
		if h.Region == region {
			hosts = append(hosts, h)
		}
	}
	switch {
	case len(hosts) > 0:
		return hosts, nil
	case region == h.region:
		return nil, noRoom("no host takes new machines")
	default:
		return nil, hangar.Errorf(hangar.CodeInvalid, hangar.ReasonBadConfig, "invalid region: %q is not a region of this server", region)
	}
}

func noRoom(why string) error {
	return hangar.Errorf(hangar.CodeConflict, hangar.ReasonInsufficientCapacity, "aborted: could not reserve resource for machine: %s", why)
}

// regions returns the regions where Machines can be created.
func (h *hosts) regions() []hangar.Region {
	regions := []hangar.Region{h.region}
	for _, h := range h.agents.Hosts() {
		regions = append(regions, h.Region)
	}
	return regions
}

// hostsIn is regionHosts with the errors for volumes.
func (h *hosts) hostsIn(region hangar.Region) ([]hangar.Host, error) {
	hosts, err := h.regionHosts(region)
	switch {
	case hangar.CodeOf(err) == hangar.CodeInvalid:
		return nil, badRegion("%q is not a region of this server", region)
	case err != nil:
		return nil, hangar.Errorf(hangar.CodeConflict, hangar.ReasonVolumeCapacity, "no capacity: no host takes new volumes")
	default:
		return hosts, nil
	}
}
