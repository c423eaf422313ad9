package provider

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
)

// The roles of a user in an organization.
const (
	RoleAdmin  = "admin"
	RoleMember = "member"
)

// Provision is the body of POST /extensions and PATCH /extensions/{id}, with which the platform creates and
// changes an extension.
type Provision struct {
	Name             string     `json:"name"` // unique across the platform
	ID               string     `json:"id"`   // of the extension, on the platform
	OrganizationID   string     `json:"organization_id"`
	OrganizationName string     `json:"organization_name"` // display name
	UserID           string     `json:"user_id"`           // of the user who provisions
	UserEmail        string     `json:"user_email"`        // an alias that reaches the user and does not change
	UserRole         string     `json:"user_role"`         // RoleAdmin or RoleMember
	PrimaryRegion    string     `json:"primary_region,omitempty"`
	ReadRegions      []string   `json:"read_regions,omitempty"` // for read replicas
	IPAddress        netip.Addr `json:"ip_address,omitzero"`    // IPv6 address of the extension in the customer's network
	Plan             string     `json:"plan,omitempty"`         // if the customer has chosen one on the platform

	// Signer.Sign adds these to the body of a request.
	URL       string    `json:"url,omitempty"`
	Nonce     string    `json:"nonce,omitempty"`
	Timestamp Timestamp `json:"timestamp,omitzero"`
}

// Validate reports the first required member that is missing, or the first invalid one.
func (p *Provision) Validate() error {
	for _, member := range []struct{ name, value string }{
		{"name", p.Name},
		{"id", p.ID},
		{"organization_id", p.OrganizationID},
		{"organization_name", p.OrganizationName},
		{"user_id", p.UserID},
		{"user_email", p.UserEmail},
	} {
		if member.value == "" {
			return fmt.Errorf("provider: provision: %s is missing", member.name)
		}
	}
	if p.UserRole != RoleAdmin && p.UserRole != RoleMember {
		return errors.New("provider: provision: user_role must be admin or member")
	}
	if p.IPAddress.IsValid() && (!p.IPAddress.Is6() || p.IPAddress.Zone() != "") {
		return errors.New("provider: provision: ip_address must be an IPv6 address")
	}
	return nil
}

// Provisioned is the answer to POST /extensions.
type Provisioned struct {
	// ID is the provider's id of the extension, which all later requests use. It may be the ID of the
	// Provision.
	ID string `json:"id"`
	// Config has secrets of the customer's App, by the name of the environment variable.
	Config map[string]string `json:"config"`
	// Name replaces the name in the Provision, unless it is empty.
	Name string `json:"name,omitempty"`
	// PlatformAppName is the provider's App on the platform that serves the extension's address, or empty.
	PlatformAppName string `json:"platform_app_name,omitempty"`
}

// UnmarshalJSON also reads fly_app_name as the name of the App, if platform_app_name is absent.
func (p *Provisioned) UnmarshalJSON(raw []byte) error {
	type plain Provisioned
	var read struct {
		plain
		FlyAppName string `json:"fly_app_name"`
	}
	if err := json.Unmarshal(raw, &read); err != nil {
		return err
	}
	*p = Provisioned(read.plain)
	if p.PlatformAppName == "" {
		p.PlatformAppName = read.FlyAppName
	}
	return nil
}

// Validate reports the first required member that is missing.
func (p *Provisioned) Validate() error {
	switch {
	case p.ID == "":
		return errors.New("provider: provisioned: id is missing")
	case p.Config == nil:
		return errors.New("provider: provisioned: config is missing")
	default:
		return nil
	}
}

// Values of Resource.Status. A provider may have others.
const (
	StatusReady    = "ready"
	StatusSleeping = "sleeping"
	StatusError    = "error" // provisioning has failed
)

// Resource is an extension as its provider sees it: the answer to GET and PATCH /extensions/{id}, and
// a part of a webhook.
type Resource struct {
	ID             string // the provider's
	Name           string
	Plan           string
	Status         string
	OrganizationID string
	UserID         string

	// Extra has all other members, such as usage. MarshalJSON ignores those with names of the fields
	// above.
	Extra map[string]json.RawMessage
}

// members returns the fields by their names in JSON.
func (r *Resource) members() map[string]*string {
	return map[string]*string{
		"id": &r.ID, "name": &r.Name, "plan": &r.Plan, "status": &r.Status,
		"organization_id": &r.OrganizationID, "user_id": &r.UserID,
	}
}

// MarshalJSON writes the members in the order of their names, without empty fields.
func (r Resource) MarshalJSON() ([]byte, error) {
	all := make(map[string]any, len(r.Extra)+6)
	for name, value := range r.Extra {
		all[name] = value
	}
	for name, field := range r.members() {
		delete(all, name)
		if *field != "" {
			all[name] = *field
		}
	}
	return json.Marshal(all)
}

// UnmarshalJSON reads a resource, and stores unknown members in Extra.
func (r *Resource) UnmarshalJSON(raw []byte) error {
	all, err := object(raw)
	if err != nil {
		return fmt.Errorf("provider: resource: %w", err)
	}
	var read Resource
	for name, field := range read.members() {
		value, found := all[name]
		if !found {
			continue
		}
		if err := json.Unmarshal(value, field); err != nil {
			return fmt.Errorf("provider: resource: %s: %w", name, err)
		}
		delete(all, name)
	}
	if len(all) > 0 {
		read.Extra = maps.Clone(all)
	}
	*r = read
	return nil
}
