package hangar

// MachineAsk is a Machine or a volume that needs a host.
type MachineAsk struct {
	App   AppID
	Guest Guest  // for a volume: the guest of the Machine that will use it, unknown if it has no CPUs
	Image string // as MachineConfig.ImageName returns it; empty for a volume
	// Volume is the size of the volume in bytes; 0 for a Machine.
	Volume int64
}

// MachineBid is what a host offers to a Machine or a volume. It is no promise: CreateMachine and
// CreateVolume may still refuse.
type MachineBid struct {
	HostRoom

	CPUs  int64 // not promised to a Machine yet; negative: the host has promised more than it has
	Image bool  // the host holds the image already
	// Refusal says why the host would refuse the Machine now. Empty: it would accept. Lack of room for
	// a volume is no refusal, because the host may remove destroyed volumes first.
	Refusal string
}
