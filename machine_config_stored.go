package hangar

import (
	"bytes"
	"encoding/json"
	"reflect"
)

// Seal promises that what the config refers to is never changed in place any more,
// only replaced, as in a record that others read. MarshalJSON then need not look
// for changes inside. It may be repeated.
func (c *MachineConfig) Seal() error {
	if c.intact() {
		return nil
	}
	doc, err := c.MarshalJSON()
	if err == nil {
		c.seal(doc)
	}
	return err
}

func (c *MachineConfig) seal(doc json.RawMessage) {
	typed := plainConfig(*c)
	typed.sent = nil
	c.sent = &sentConfig{doc: doc, sealed: &typed}
}

// intact reports whether the config is sealed and no field was replaced since.
func (c *MachineConfig) intact() bool {
	if c.sent == nil || c.sent.sealed == nil {
		return false
	}
	now := plainConfig(*c)
	now.sent = nil
	return identical(reflect.ValueOf(&now).Elem(), reflect.ValueOf(c.sent.sealed).Elem())
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

// StoredMachine reads a Machine from where it was kept. Its config was normalised
// before it was written, so that need not be done again, and comes sealed.
type StoredMachine struct {
	*Machine
	Config StoredConfig `json:"config"`
}

// Restore returns the Machine that was read.
func (m *StoredMachine) Restore() Machine {
	if m.Machine == nil {
		m.Machine = new(Machine)
	}
	m.Machine.Config = MachineConfig(m.Config)
	return *m.Machine
}

// StoredConfig is the config of a StoredMachine.
type StoredConfig MachineConfig

// UnmarshalJSON reads what MachineConfig.MarshalJSON wrote, also in another version.
func (c *StoredConfig) UnmarshalJSON(raw []byte) error {
	var p plainConfig
	// Whoever wrote it may have escaped what MarshalJSON had not.
	if bytes.Contains(raw, []byte(`\u00`)) || json.Unmarshal(raw, &p) != nil {
		config := (*MachineConfig)(c)
		if err := config.UnmarshalJSON(raw); err != nil {
			return err
		}
		return config.Seal()
	}
	*c = StoredConfig(p)
	(*MachineConfig)(c).seal(bytes.Clone(raw))
	return nil
}
