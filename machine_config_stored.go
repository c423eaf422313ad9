package hangar

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Seal promises that the values to which the config refers are never again changed in place, only
// replaced. MarshalJSON then need not look for changes inside them. It may be repeated.
func (c *MachineConfig) Seal() error { return (*MachinePool)(nil).Seal(c) }

// Document returns the JSON of the normalised config; see Normalize. The caller must not change it.
func (c *MachineConfig) Document() (json.RawMessage, error) {
	if c.normal() && c.intact() {
		return c.sent.doc, nil
	}
	normal := *c
	if err := normal.Normalize(); err != nil {
		return nil, err
	}
	return normal.MarshalJSON()
}

// seal makes doc the JSON of the config. typed has the fields of the config without the metadata.
func (c *MachineConfig) seal(doc json.RawMessage, typed *plainConfig) {
	c.sent = &sentConfig{doc: doc, sealed: typed, metadata: c.Metadata}
}

// withoutMetadata returns the typed fields except for the metadata.
func (c *MachineConfig) withoutMetadata() *plainConfig {
	typed := plainConfig(*c)
	typed.sent, typed.Metadata = nil, nil
	return &typed
}

// intact reports whether the config is sealed and no field was replaced since.
func (c *MachineConfig) intact() bool {
	if c.sent == nil || c.sent.sealed == nil {
		return false
	}
	metadata := reflect.ValueOf(&c.Metadata)
	if !identical(metadata.Elem(), reflect.ValueOf(&c.sent.metadata).Elem()) {
		return false
	}
	now, then := reflect.ValueOf(c).Elem(), reflect.ValueOf(c.sent.sealed).Elem()
	for i := range now.NumField() {
		f := now.Field(i)
		if f.Addr().UnsafePointer() == metadata.UnsafePointer() || f.Type() == reflect.TypeFor[*sentConfig]() {
			continue
		}
		if !identical(f, then.Field(i)) {
			return false
		}
	}
	return true
}

// identical reports whether two values of a type are equal without looking into what
// they refer to.
func identical(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Map, reflect.Pointer:
		return a.UnsafePointer() == b.UnsafePointer()
	case reflect.Slice:
		return a.UnsafePointer() == b.UnsafePointer() && a.Len() == b.Len()
	case reflect.Struct:
		for i := range a.NumField() {
			if !identical(a.Field(i), b.Field(i)) {
				return false
			}
		}
		return true
	default:
		return a.Comparable() && a.Equal(b)
	}
}

// EncodeStored encodes a value that contains Machines or configs, to be stored. Unlike json.Marshal it
// does not escape &, < and >, so that MachinePool.Stored can use the JSON of a config in place.
func EncodeStored(v any) ([]byte, error) { return encode(v) }

// StoredMachine decodes a stored Machine; see MachinePool.Stored.
type StoredMachine struct {
	*Machine
	Config StoredConfig `json:"config"`
}

// Restore completes the Machine after it was decoded.
func (m *StoredMachine) Restore() {
	m.Machine.Config = m.Config.config
	m.Config.pool.share(m.Machine)
}

// StoredConfig is the config of a StoredMachine.
type StoredConfig struct {
	pool   *MachinePool // nil: it shares nothing
	config MachineConfig
}

// UnmarshalJSON reads what MachineConfig.MarshalJSON wrote, in this or another version of the program.
func (c *StoredConfig) UnmarshalJSON(raw []byte) error {
	// json.Marshal has escaped &, < and >, which MarshalJSON leaves as they are.
	if !bytes.Contains(raw, []byte(`\u00`)) && c.pool.read(&c.config, bytes.Clone(raw)) == nil {
		return nil
	}
	if err := c.config.UnmarshalJSON(raw); err != nil {
		return err
	}
	return c.pool.Seal(&c.config)
}
