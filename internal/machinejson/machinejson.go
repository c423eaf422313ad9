// Package machinejson reads Machines from the JSON that hangar.EncodeJSON wrote, in which each config is its
// document: from where they are stored, and from other servers.
package machinejson

import (
	"bytes"

	"github.com/hangar-platform/hangar"
)

// Machine decodes a stored Machine; see Pool.Stored.
type Machine struct {
	*hangar.Machine
	Config Config `json:"config"`
}

// Restore completes the Machine after it was decoded.
func (m *Machine) Restore() {
	m.Machine.Config = m.Config.config
	m.Config.pool.share(m.Machine)
}

// Config is the config of a Machine.
type Config struct {
	pool   *Pool // nil: it shares nothing
	config hangar.MachineConfig
}

// UnmarshalJSON reads what hangar.MachineConfig.MarshalJSON wrote, in this or another version of the program.
func (c *Config) UnmarshalJSON(raw []byte) error {
	// json.Marshal has escaped &, < and >, which MarshalJSON leaves as they are.
	if !bytes.Contains(raw, []byte(`\u00`)) {
		if config, err := c.pool.read(bytes.Clone(raw)); err == nil {
			c.config = config
			return nil
		}
	}
	if err := c.config.UnmarshalJSON(raw); err != nil {
		return err
	}
	return c.pool.Seal(&c.config)
}
