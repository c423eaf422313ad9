package hangar

// MachineAsk is a Machine for which control looks for a host.
type MachineAsk struct {
	App   AppID
	Guest Guest
	Image string // as MachineConfig.ImageName returns it
}

// MachineBid is what a host offers to a Machine. It promises nothing: CreateMachine has the last
// word.
type MachineBid struct {
	HostRoom

	CPUs  int64 // that no Machine has been promised; negative: it has promised more than it has
	Image bool  // it holds the image, so that nothing need be pulled
	// Refusal says why the host would refuse the Machine now; empty: it would take it.
	Refusal string
}
