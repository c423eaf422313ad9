// Package machinejson is how Machines are kept and sent between servers: as JSON, with each config as
// its document.
package machinejson

import (
	"bytes"
	"encoding/json"

	"github.com/hangar-platform/hangar"
)

// Marshal encodes a value that contains Machines or configs. Unlike json.Marshal it does not escape &, <
// and >, so that Pool.Stored can use the JSON of a config in place.
func Marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

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
