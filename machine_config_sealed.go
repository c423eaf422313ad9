package hangar

import (
	"encoding/json"
	"reflect"
)

// Seal promises that the values to which the config refers are never again changed in place, only
// replaced. MarshalJSON then need not look for changes inside them. It may be repeated.
func (c *MachineConfig) Seal() error {
	if c.Sealed() {
		return nil
	}
	doc, err := c.MarshalJSON()
	if err != nil {
		return err
	}
	c.seal(doc, c.withoutMetadata())
	return nil
}

// ReadSealed decodes the document of a normalised config, as MarshalJSON wrote it, and seals the config.
// It keeps doc.
func ReadSealed(doc json.RawMessage) (MachineConfig, error) {
	var typed plainConfig
	if err := json.Unmarshal(doc, &typed); err != nil {
		return MachineConfig{}, err
	}
	c := MachineConfig(typed)
	c.seal(doc, c.withoutMetadata())
	return c, nil
}

// WithMetadata returns a copy of a sealed config with other metadata, and with doc as its document. Both
// share all other values.
func (c *MachineConfig) WithMetadata(doc json.RawMessage, metadata map[string]string) MachineConfig {
	next := *c
	next.Metadata = metadata
	next.seal(doc, c.sent.sealed)
	return next
}

// Document returns the JSON of the normalised config; see Normalize. The caller must not change it.
func (c *MachineConfig) Document() (json.RawMessage, error) {
	if c.normal() && c.Sealed() {
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

// Sealed reports whether no field was replaced since Seal.
func (c *MachineConfig) Sealed() bool {
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
