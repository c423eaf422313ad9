package hangar

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// MaxConfigBytes bounds the document of a MachineConfig.
const MaxConfigBytes = 1 << 20

// maxConfigDepth bounds how deep a document nests, far above what any config needs.
const maxConfigDepth = 64

// sentConfig is a normalised document and what its typed fields were when it was
// read. It is shared by copies of a MachineConfig and never changed.
type sentConfig struct {
	doc   json.RawMessage
	typed [sha256.Size]byte // digest of the typed fields as plainConfig writes them
	// sealed holds the typed fields of a sealed config, which then has no digest; see Seal. The
	// metadata is separate, so that configs that differ only in it share the rest; see WithMetadata.
	sealed   *plainConfig
	metadata map[string]string
}

// plainConfig is MachineConfig without its methods, for encoding/json.
type plainConfig MachineConfig

// ParseMachineConfig reads a config and checks it. The result keeps the document as it was sent,
// including unknown properties, except for these normalisations: durations become strings, autostop
// "off" and "stop" become false and true, size becomes guest, what guest leaves out is filled in, and
// init is at least {}. Every error is CodeInvalid and names the property by its path.
func ParseMachineConfig(raw []byte) (MachineConfig, error) {
	var c MachineConfig
	if len(raw) > MaxConfigBytes {
		return c, badConfig("config", "has %d bytes, more than the %d that are allowed", len(raw), MaxConfigBytes)
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		if e, ok := errors.AsType[*Error](err); ok {
			return MachineConfig{}, e
		}
		return MachineConfig{}, badConfig("config", "%s", err)
	}
	if err := c.Validate(); err != nil {
		return MachineConfig{}, err
	}
	return c, nil
}

// UnmarshalJSON reads and normalises a document as ParseMachineConfig does, but
// checks only its types, so that a config of another version can still be read.
func (c *MachineConfig) UnmarshalJSON(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return badConfig("config", "%s", err)
	}
	tree, ok := v.(map[string]any)
	if !ok {
		return badConfig("config", "must be an object")
	}
	if err := normalise(tree, reflect.TypeFor[MachineConfig](), "config", 0); err != nil {
		return err
	}
	if err := fillGuest(tree); err != nil {
		return err
	}
	if tree["init"] == nil {
		tree["init"] = map[string]any{}
	}
	doc, err := EncodeJSON(tree)
	if err != nil {
		return badConfig("config", "%s", err)
	}
	var p plainConfig
	if err := json.Unmarshal(doc, &p); err != nil {
		return typeError(err)
	}
	*c = MachineConfig(p)
	digest, err := c.typedDigest()
	if err != nil {
		return err
	}
	c.sent = &sentConfig{doc: doc, typed: digest}
	return nil
}

// MarshalJSON writes the document that was sent. Fields that Go code has changed
// since replace theirs in it; what the document holds beyond the typed fields
// stays. A config that was built in Go is written from its fields.
func (c MachineConfig) MarshalJSON() ([]byte, error) {
	if c.Sealed() {
		return c.sent.doc, nil
	}
	typed, err := EncodeJSON(plainConfig(c))
	if err != nil || c.sent == nil {
		return typed, err
	}
	if c.sent.sealed == nil && sha256.Sum256(typed) == c.sent.typed {
		return c.sent.doc, nil
	}
	var before plainConfig
	if err := json.Unmarshal(c.sent.doc, &before); err != nil {
		return nil, fmt.Errorf("read the config as it was sent: %w", err)
	}
	was, err := EncodeJSON(before)
	if err != nil {
		return nil, err
	}
	return EncodeJSON(overlay(mustTree(c.sent.doc), mustTree(was), mustTree(typed)))
}

// Normalize expands Size and fills in Guest for a config that was built in Go, as
// ParseMachineConfig does for one that was sent. It may be repeated.
func (c *MachineConfig) Normalize() error {
	if c.normal() {
		return nil
	}
	raw, err := c.MarshalJSON()
	if err != nil {
		return err
	}
	return c.UnmarshalJSON(raw)
}

// normal reports whether Normalize has nothing to do.
func (c *MachineConfig) normal() bool { return c.Size == "" && c.Guest != nil && c.Guest.complete() }

// SetMetadata replaces the metadata, also in the document that MarshalJSON writes.
func (c *MachineConfig) SetMetadata(metadata map[string]string) {
	// MarshalJSON would find the difference, too, but again for every reader.
	before, sealed := *c, c.Sealed()
	c.Metadata = metadata
	if !sealed {
		typed, err := before.typedDigest()
		if err != nil || c.sent == nil || c.sent.sealed != nil || c.sent.typed != typed {
			return
		}
	}
	doc, err := c.sentWith(metadata)
	if err != nil {
		return
	}
	if sealed {
		c.seal(doc, c.sent.sealed)
	} else if typed, err := c.typedDigest(); err == nil {
		c.sent = &sentConfig{doc: doc, typed: typed}
	}
}

// sentWith returns the document that was sent with other metadata.
func (c *MachineConfig) sentWith(metadata map[string]string) (json.RawMessage, error) {
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(c.sent.doc, &doc); err != nil {
		return nil, err
	}
	delete(doc, "metadata")
	if len(metadata) > 0 {
		pairs, err := EncodeJSON(metadata)
		if err != nil {
			return nil, err
		}
		doc["metadata"] = pairs
	}
	return EncodeJSON(doc)
}

func (c *MachineConfig) typedDigest() ([sha256.Size]byte, error) {
	typed, err := EncodeJSON(plainConfig(*c))
	return sha256.Sum256(typed), err
}

// overlay returns doc with everything that differs between the typed trees was
// and now set as it is in now. It changes doc.
func overlay(doc, was, now any) any {
	if reflect.DeepEqual(was, now) {
		return doc
	}
	switch now := now.(type) {
	case map[string]any:
		docMap, ok1 := doc.(map[string]any)
		wasMap, ok2 := was.(map[string]any)
		if !ok1 || !ok2 {
			return now
		}
		for k := range wasMap {
			if _, ok := now[k]; !ok {
				delete(docMap, k)
			}
		}
		for k, v := range now {
			old, ok := docMap[k]
			if before, had := wasMap[k]; ok && had {
				v = overlay(old, before, v)
			} else if had && reflect.DeepEqual(before, v) {
				continue // a zero that is always written and that the document leaves out
			}
			docMap[k] = v
		}
		return docMap
	case []any:
		docList, ok1 := doc.([]any)
		wasList, ok2 := was.([]any)
		if !ok1 || !ok2 || len(docList) != len(now) || len(wasList) != len(now) {
			return now
		}
		for i := range now {
			docList[i] = overlay(docList[i], wasList[i], now[i])
		}
		return docList
	default:
		return now
	}
}

// normalise walks a document along the type into which it will be decoded. It turns several spellings
// into one. It refuses a property whose name differs from a typed one only in its case: encoding/json
// would read it, and the echo would contradict the typed field.
func normalise(v any, t reflect.Type, path string, depth int) error {
	if depth > maxConfigDepth {
		return badConfig(path, "nests deeper than %d levels", maxConfigDepth)
	}
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch v := v.(type) {
	case map[string]any:
		for k, sub := range v {
			at := path + "." + k
			subType, known, err := memberType(t, k, at)
			if err != nil {
				return err
			}
			if known && sub != nil {
				if v[k], err = normalValue(sub, subType, at); err != nil {
					return err
				}
			}
			if t == reflect.TypeFor[Service]() && k == "autostop" {
				v[k] = normalAutostop(sub)
			}
			if err := normalise(v[k], subType, at, depth+1); err != nil {
				return err
			}
		}
	case []any:
		elem := reflect.TypeFor[any]()
		if t.Kind() == reflect.Slice {
			elem = t.Elem()
		}
		for i, sub := range v {
			if err := normalise(sub, elem, fmt.Sprintf("%s[%d]", path, i), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// memberType returns the type behind key in an object that is read as t.
func memberType(t reflect.Type, key, path string) (reflect.Type, bool, error) {
	unknown := reflect.TypeFor[any]()
	switch t.Kind() {
	case reflect.Map:
		return indirect(t.Elem()), true, nil
	case reflect.Struct:
	default:
		return unknown, false, nil
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" || name == "-":
		case name == key:
			return indirect(f.Type), true, nil
		case strings.EqualFold(name, key):
			return nil, false, badConfig(path, "is not a property; %q is", name)
		}
	}
	return unknown, false, nil
}

func indirect(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}

// normalValue returns a value of type t in its one spelling, which is the one that clients read. It
// also refuses what the decoder would refuse without naming the property.
func normalValue(v any, t reflect.Type, path string) (any, error) {
	switch t {
	case reflect.TypeFor[Duration]():
		return spelling[Duration](v, path)
	case reflect.TypeFor[Signal]():
		if s, err := spelling[Signal](v, path); s != "0" {
			return s, err
		}
		return nil, nil // none is named
	case reflect.TypeFor[[]Header]():
		return headerList(v), nil
	case reflect.TypeFor[[]byte]():
		text, ok := v.(string)
		if !ok {
			return nil, badConfig(path, "must be a text in base64")
		}
		if _, err := base64.StdEncoding.DecodeString(text); err != nil {
			return nil, badConfig(path, "%s", err)
		}
	}
	return v, nil
}

// spelling reads v as a T and returns how a T is written.
func spelling[T fmt.Stringer](v any, path string) (any, error) {
	raw, err := EncodeJSON(v)
	var read T
	if err == nil {
		err = json.Unmarshal(raw, &read)
	}
	if err != nil {
		return nil, badConfig(path, "%s", err)
	}
	return read.String(), nil
}

// headerList turns {"name": "value" or [values]} into the list that is stored.
func headerList(v any) any {
	object, ok := v.(map[string]any)
	if !ok {
		return v
	}
	list := make([]any, 0, len(object))
	for _, name := range slices.Sorted(maps.Keys(object)) {
		values, ok := object[name].([]any)
		if !ok {
			values = []any{object[name]}
		}
		list = append(list, map[string]any{"name": name, "values": values})
	}
	return list
}

func normalAutostop(v any) any {
	switch v {
	case "off":
		return false
	case "stop":
		return true
	default:
		return v
	}
}

// typeError names the property that a decoding error is about.
func typeError(err error) error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && t.Field != "" {
		return badConfig("config."+t.Field, "%s", err)
	}
	return badConfig("config", "%s", err)
}

// maxErrorPath bounds the path of an error, in bytes: the keys in it are the sender's.
const maxErrorPath = 512

// badConfig says which property breaks which rule.
func badConfig(path, rule string, args ...any) error {
	return &Error{Code: CodeInvalid, Reason: ReasonBadConfig, Message: "invalid " + clipPath(path) + ": " + fmt.Sprintf(rule, args...)}
}

// unsupported is the error for a property that this platform does not offer.
func unsupported(path, what string) error {
	return &Error{Code: CodeInvalid, Reason: ReasonUnsupported, Message: "invalid " + clipPath(path) + ": " + what + " by this server"}
}

func clipPath(path string) string {
	if len(path) > maxErrorPath {
		return strings.ToValidUTF8(path[:maxErrorPath], "") + "…"
	}
	return path
}

// EncodeJSON encodes a value as compact JSON. Unlike json.Marshal it does not escape &, < and >, so that a
// config in it is its document, byte for byte.
func EncodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// mustTree reads a document that this package has written.
func mustTree(doc []byte) any {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil && !errors.Is(err, io.EOF) {
		panic("hangar: a config that was written cannot be read: " + err.Error())
	}
	return v
}
