package vault

// Keys of log records.
const (
	keyKey   = "key"
	keyError = "error"
)
