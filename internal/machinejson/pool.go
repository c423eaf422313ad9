package machinejson

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"

	"github.com/hangar-platform/hangar"
)

// Pool lets Machines in memory share what they have in common. Those of an App often differ in
// hardly more than their ids and metadata, so that a hundred thousand take a fraction of the memory,
// and of most configs only the metadata need be read. What is shared is never changed in place; see
// hangar.MachineConfig.Seal and ADR 18.
//
// A pool holds what it has seen lately, within bounds. The zero value is empty, and a nil pool
// shares nothing; methods may be called from any goroutine.
type Pool struct {
	mu      sync.Mutex
	configs map[string]*hangar.MachineConfig // by document without metadata, sealed; guarded by mu
	size    int                              // of the documents, in bytes; guarded by mu
	texts   map[string]string                // each by itself; guarded by mu
}

// maxPooled bounds the documents of a pool, in bytes. One that takes more than a part of that is not
// worth it. maxTexts is how many texts it has, of at most maxText bytes.
const (
	maxPooled    = 8 << 20
	maxPooledDoc = maxPooled / 64
	maxTexts     = 16 << 10
	maxText      = 512
)

// Stored returns what reads a Machine into m from where it was kept. Its config was normalised before
// it was written, so that need not be done again, and comes sealed. It is complete after
// Machine.Restore.
func (p *Pool) Stored(m *hangar.Machine) Machine {
	return Machine{Machine: m, Config: Config{pool: p}}
}

// share replaces texts of a Machine that others have, too.
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

// Seal is hangar.MachineConfig.Seal, and shares the config.
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

// without returns the config of a document whose metadata is cut out between head and tail.
func (p *Pool) without(head, tail []byte) (*hangar.MachineConfig, error) {
	// A document without the value differs from every other with it, so only documents
	// that differ in nothing else have the same key.
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

// findMetadata returns where the value of the member "metadata" is in an object in
// JSON; from and to are its end if there is none. It is not ok when there may be
// several that encoding/json would read into the field.
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
