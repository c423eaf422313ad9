package diskspace

// Purpose is the purpose of a request for room. It completes "cannot …" in the text of a refusal,
// and is the label of the counter of refusals.
type Purpose string

// The purposes of room.
const (
	PullImage       Purpose = "pull an image"
	PushImage       Purpose = "push an image"
	UnpackImage     Purpose = "unpack an image"
	CreateMachine   Purpose = "create a Machine"
	UpdateMachine   Purpose = "update a Machine"
	StartMachine    Purpose = "start a Machine"
	SuspendMachine  Purpose = "suspend a Machine"
	CreateVolume    Purpose = "create a volume"
	ForkVolume      Purpose = "fork a volume"
	TakeSnapshot    Purpose = "take a snapshot"
	RestoreSnapshot Purpose = "restore a snapshot"
	TrySnapshot     Purpose = "try a snapshot out"
	SpoolMetrics    Purpose = "spool metrics"
	SpoolEvents     Purpose = "spool events"
	ChangeState     Purpose = "change the state of the platform"
	CompactState    Purpose = "compact the state"
	DefragmentState Purpose = "defragment the cluster state"
)

// Purposes lists every purpose.
func Purposes() []Purpose {
	return []Purpose{
		PullImage, PushImage, UnpackImage, CreateMachine, UpdateMachine, StartMachine, SuspendMachine, CreateVolume, ForkVolume,
		TakeSnapshot, RestoreSnapshot, TrySnapshot, SpoolMetrics, SpoolEvents, ChangeState, CompactState, DefragmentState,
	}
}
