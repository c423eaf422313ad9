package hangar

import (
	"context"
	"time"
)

// AppStatus says whether anything was ever deployed to an App.
type AppStatus string

// The statuses of an App.
const (
	AppPending  AppStatus = "pending"  // no Machine was ever created
	AppDeployed AppStatus = "deployed" // has or had Machines
)

// DefaultNetwork is the name of the network of Apps that do not name one.
const DefaultNetwork = "default"

// App is a named group of Machines with one owner and one private network.
type App struct {
	ID           AppID     `json:"id"`
	Name         AppName   `json:"name"`
	NumericID    uint64    `json:"internal_numeric_id"`
	Org          Org       `json:"organization"`
	Network      string    `json:"network"` // its name; DefaultNetwork unless chosen
	NetworkID    NetworkID `json:"network_id"`
	Status       AppStatus `json:"status"`
	MachineCount int       `json:"machine_count"`
	VolumeCount  int       `json:"volume_count"`
	CreatedAt    time.Time `json:"created"`
	// URL is where the edge serves the App by HTTP under its own name, once the App has a public
	// address. Empty: the server has no edge.
	URL string `json:"url,omitempty"`
}

// AppCreate is the request for a new App.
type AppCreate struct {
	Name    AppName
	Org     OrgSlug
	Network string // empty: the organization's default network
}

// AppFilter selects Apps. The zero value selects all that the caller may see.
type AppFilter struct {
	Org OrgSlug
}

// AppNotFound is the error for a missing App, and for one that the caller may not see. Existing clients
// compare its whole text, to learn that a name is free.
func AppNotFound() error {
	return &Error{Code: CodeNotFound, Reason: ReasonAppNotFound, Message: "app not found"}
}

// AppService keeps the Apps of a server. Every method answers CodeUnauthenticated
// without a principal, CodeForbidden for what the caller sees but may not do, and
// CodeNotFound for what it may not see, exactly as for a missing App. CreateApp and App
// still reveal that a name is taken, because names are unique on the server.
type AppService interface {
	// CreateApp answers CodeInvalid for a bad name (ReasonBadName) and for a name
	// that exists (ReasonNameTaken). It may not be repeated blindly.
	CreateApp(ctx context.Context, in AppCreate) (*App, error)
	// App answers CodeNotFound with ReasonAppNotFound.
	App(ctx context.Context, name AppName) (*App, error)
	// Apps are sorted by name.
	Apps(ctx context.Context, filter AppFilter) ([]*App, error)
	// DestroyApp destroys the App and its Machines. Hosts remove the Machines' files right after it
	// returns. Without force it answers CodeFailedPrecondition with ReasonMachinesRunning while a
	// Machine runs. It may be repeated until it answers CodeNotFound.
	DestroyApp(ctx context.Context, name AppName, force bool) error
}
