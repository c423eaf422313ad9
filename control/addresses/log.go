package addresses

// Keys of log records.
const (
	keyApp   = "app"
	keyKey   = "key"
	keyError = "error"
)
