package machinejson

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/hangar-platform/hangar"
)

// Pool lets Machines in memory share equal parts. Machines of an App often differ in little more than
// their ids and metadata. Sharing then saves most of their memory, and only the metadata of most configs
// is decoded. Shared values are never changed in place; see hangar.MachineConfig.Seal and ADR 18.
//
// A pool holds recent values, within bounds. The zero value is empty, and a nil pool shares nothing.
// Methods may be called from any goroutine.
type Pool struct {
	mu      sync.Mutex
	configs map[string]*hangar.MachineConfig // by document without metadata, sealed; guarded by mu
	size    int                              // of the documents, in bytes; guarded by mu
	texts   map[string]string                // by the text itself; guarded by mu
}

// maxPooled bounds the documents of a pool, in bytes; those above maxPooledDoc are not shared. maxTexts
// bounds the number of its texts, which have at most maxText bytes.
const (
	maxPooled    = 8 << 20
	maxPooledDoc = maxPooled / 64
	maxTexts     = 16 << 10
	maxText      = 512
)

// Stored returns a value that decodes a stored Machine into m. The config was normalised before it was
// stored, so it is not normalised again. It comes sealed. m is complete after Machine.Restore.
func (p *Pool) Stored(m *hangar.Machine) Machine {
	return Machine{Machine: m, Config: Config{pool: p}}
}

// share replaces texts of a Machine by equal ones of other Machines.
func (p *Pool) share(m *hangar.Machine) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	shareText(p, &m.App)
	shareText(p, &m.AppID)
	shareText(p, &m.State)
	shareText(p, &m.Region)
	shareText(p, &m.Host)
	shareText(p, &m.HostStatus)
	shareText(p, &m.ImageRef.Registry)
	shareText(p, &m.ImageRef.Repository)
	shareText(p, &m.ImageRef.Tag)
	shareText(p, &m.ImageRef.Digest)
}

// shareText replaces a text by an equal one. p.mu is held.
func shareText[T ~string](p *Pool, s *T) {
	known, ok := p.texts[string(*s)]
	switch {
	case ok:
		*s = T(known)
	case len(*s) <= maxText:
		if p.texts == nil || len(p.texts) == maxTexts {
			p.texts = make(map[string]string)
		}
		p.texts[string(*s)] = string(*s)
	}
}

// Seal seals a config as hangar.MachineConfig.Seal does, and shares it.
func (p *Pool) Seal(c *hangar.MachineConfig) error {
	if p == nil || c.Sealed() {
		return c.Seal()
	}
	doc, err := c.MarshalJSON()
	if err != nil {
		return err
	}
	shared, err := p.read(doc)
	if err != nil {
		return c.Seal()
	}
	*c = shared
	return nil
}

// read returns the sealed config of a document, which it keeps.
func (p *Pool) read(doc []byte) (hangar.MachineConfig, error) {
	from, to, ok := findMetadata(doc)
	if p == nil || !ok || len(doc) > maxPooledDoc {
		return hangar.ReadSealed(doc)
	}
	var metadata map[string]string
	if from < to {
		if err := json.Unmarshal(doc[from:to], &metadata); err != nil {
			return hangar.MachineConfig{}, err
		}
	}
	shared, err := p.without(doc[:from], doc[to:])
	if err != nil {
		return hangar.MachineConfig{}, err
	}
	return shared.WithMetadata(doc, metadata), nil
}

// without returns the config of a document without metadata, from its parts before and after the value
// of the metadata.
func (p *Pool) without(head, tail []byte) (*hangar.MachineConfig, error) {
	// Without that value the key is no valid JSON, so it equals only keys of documents that differ in
	// nothing else.
	key := slices.Concat(head, tail)
	if c := p.known(key); c != nil {
		return c, nil
	}
	doc := key
	if len(tail) > 0 {
		doc = slices.Concat(head, []byte("null"), tail)
	}
	c, err := hangar.ReadSealed(doc)
	if err != nil {
		return nil, err
	}
	p.add(key, &c)
	return &c, nil
}

func (p *Pool) known(key []byte) *hangar.MachineConfig {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.configs[string(key)]
}

func (p *Pool) add(key []byte, c *hangar.MachineConfig) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.size += len(key); p.configs == nil || p.size > maxPooled {
		p.configs, p.size = make(map[string]*hangar.MachineConfig), len(key)
	}
	p.configs[string(key)] = c
}

// findMetadata returns where the value of the member "metadata" is in a JSON object; from and to are
// the end of doc if there is none. ok is false when encoding/json might read several members into the
// field.
func findMetadata(doc []byte) (from, to int, ok bool) {
	const name = "metadata"
	from, to = len(doc), len(doc)
	depth, key := 0, false // key: the next token at depth 1 is the key of a member
	inside := false        // the value of the member
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; c {
		case '{', '[':
			depth++
			key = key || depth == 1
		case '}', ']', ',':
			if c != ',' {
				depth--
			}
			if inside && (depth == 0 || depth == 1 && c == ',') {
				to, inside = i, false
			}
			if depth == 1 && c == ',' {
				key = true
			}
		case '"':
			begin := i + 1
			for i++; i < len(doc) && doc[i] != '"'; i++ {
				if doc[i] == '\\' {
					i++
				}
			}
			if depth != 1 || !key || i >= len(doc) {
				continue
			}
			key = false
			switch text := string(doc[begin:i]); {
			case text == name && from == len(doc) && i+1 < len(doc) && doc[i+1] == ':':
				from, inside = i+2, true
			case strings.EqualFold(text, name), strings.Contains(text, `\`):
				return 0, 0, false
			}
		}
	}
	return from, to, !inside && (from == len(doc) || from < to && to < len(doc))
}
