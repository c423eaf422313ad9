package hangar

// MachineAsk is a Machine, or a volume, for which control looks for a host.
type MachineAsk struct {
	App   AppID
	Guest Guest  // of a volume, that of the Machine that is to use it; without CPUs: not known
	Image string // as MachineConfig.ImageName returns it; of a volume, empty
	// Volume is the size of the volume in bytes; 0: it is a Machine.
	Volume int64
}

// MachineBid is what a host offers to a Machine or a volume. It promises nothing: CreateMachine and
// CreateVolume have the last word.
type MachineBid struct {
	HostRoom

	CPUs  int64 // that no Machine has been promised; negative: it has promised more than it has
	Image bool  // it holds the image, so that nothing need be pulled
	// Refusal says why the host would refuse the Machine now; empty: it would take it. A host with
	// less room than a volume needs does not refuse it: it may remove destroyed volumes for it.
	Refusal string
}
