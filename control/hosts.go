package control

import (
	"log/slog"

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

// agent finds a host. One that is unknown is as good as one that is away: it may
// have been known yesterday and be so again tomorrow.
func (h *hosts) agent(id hangar.HostID) (hangar.Agent, error) {
	agent, err := h.agents.Agent(id)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		err = &hangar.Error{Code: hangar.CodeUnavailable, Message: "The host of the machine is not known", Err: err}
	}
	return agent, err
}

// each calls do for every host that can be reached, in turn. It returns the
// first error, and an unreachable host's only if none could be reached.
func (h *hosts) each(do func(hangar.Agent) error) error {
	var away error
	reached := false
	for _, host := range h.agents.Hosts() {
		agent, err := h.agent(host.ID)
		if err == nil {
			err = do(agent)
		}
		switch {
		case err == nil:
			reached = true
		case !unreachable(err):
			return err
		default:
			away = err
			h.log.Warn("host left out", keyHost, host.ID, keyError, err)
		}
	}
	if reached {
		return nil
	}
	return away
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

// regions are those where Machines can be.
func (h *hosts) regions() []hangar.Region {
	regions := []hangar.Region{h.region}
	for _, h := range h.agents.Hosts() {
		regions = append(regions, h.Region)
	}
	return regions
}

// hostsIn is regionHosts in the words for volumes.
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
