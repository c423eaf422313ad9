// Package machinejson is how Machines are kept and sent between servers: as JSON, with each config as
// its document.
package machinejson

import (
	"bytes"
	"encoding/json"

	"github.com/hangar-platform/hangar"
)

// Marshal writes a value with Machines or configs in it. Unlike json.Marshal it leaves a config as
// hangar.MachineConfig.MarshalJSON writes it: with & < and > as they are, so that Pool.Stored reads it
// in place.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// Machine reads a Machine from where it was kept; see Pool.Stored.
type Machine struct {
	*hangar.Machine
	Config Config `json:"config"`
}

// Restore completes the Machine once all was read.
func (m *Machine) Restore() {
	m.Machine.Config = m.Config.config
	m.Config.pool.share(m.Machine)
}

// Config is the config of a Machine.
type Config struct {
	pool   *Pool // nil: it shares nothing
	config hangar.MachineConfig
}

// UnmarshalJSON reads what hangar.MachineConfig.MarshalJSON wrote, also in another version.
func (c *Config) UnmarshalJSON(raw []byte) error {
	// What json.Marshal wrote has & < and > escaped, which MarshalJSON had not.
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
