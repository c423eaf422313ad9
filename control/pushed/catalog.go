// Package pushed keeps in the cluster state which manifests and tags the repositories of the built-in
// registry have, and which hosts hold them.
//
// Promises. A tag names the manifest of its last push on all hosts, and a deletion applies to all, also to a host
// that was away. Reads see every completed write of any host as long as the state answers, and otherwise what this
// host has learned last. Writes need the state. A tag never names a missing manifest: a manifest is pushed, tagged
// or deleted in the same transaction as its tags.
//
// Bounds. The repositories of an organization, and those of the server, have hangar.MaxPushed manifests and tags in
// all; pushes at the same time may exceed that by as many.
//
// Concurrency. A Catalog is safe for concurrent use.
//
// It has no content: the hosts keep that. It does not check access to repositories.
package pushed

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/control/state"
)

const (
	// freshTime bounds how long the state may take to answer a read, and staleTime how long reads are
	// answered from memory after it did not.
	freshTime = time.Second
	staleTime = 2 * time.Second
	// maxHosts bounds of how many hosts it is known that they hold a manifest.
	maxHosts = 16
	// maxAnnotations bounds what is kept of the annotations of a manifest, in bytes of names and
	// values: of one that has more, none are kept.
	maxAnnotations = 4 << 10
	// deletesAtOnce is how many tags a transaction deletes.
	deletesAtOnce = state.MaxTxnOps / 2
)

// Config says where a Catalog is kept.
type Config struct {
	Store  state.Store // that Memory follows: its reads see every write that has returned
	Memory state.Store // a state.Mirror
	Host   hangar.HostID
	Log    *slog.Logger
	Now    func() time.Time
}

// Catalog implements hangar.ImageCatalog for one host.
type Catalog struct {
	cfg Config

	mu    sync.Mutex
	stale time.Time // until then, reads are answered from memory; guarded by mu
}

var _ hangar.ImageCatalog = (*Catalog)(nil)

// New returns the Catalog of a host.
func New(cfg Config) *Catalog { return &Catalog{cfg: cfg} }

// mark is between the path of a repository and what the repository has. No part of a path is so
// called.
const mark = "/_/"

func manifestKey(repository, digest string) string {
	return state.PushedPrefix + repository + mark + "manifests/" + strings.TrimPrefix(digest, "sha256:")
}

func tagKey(repository, tag string) string {
	return state.PushedPrefix + repository + mark + "tags/" + tag
}

func hostKey(repository string, host hangar.HostID) string {
	return state.PushedPrefix + repository + mark + "hosts/" + string(host)
}

// tag is what is kept of a tag.
type tag struct {
	Digest string `json:"digest"`
}

func isDigest(reference string) bool { return strings.HasPrefix(reference, "sha256:") }

func notFound(what string) error {
	return hangar.Errorf(hangar.CodeNotFound, hangar.ReasonImageNotFound, "%s is not found", what)
}

// read answers from the state or, if that does not answer in time, from memory.
func (c *Catalog) read(ctx context.Context, from func(context.Context, state.Store) error) error {
	c.mu.Lock()
	stale := c.cfg.Now().Before(c.stale)
	c.mu.Unlock()
	if !stale {
		bounded, cancel := context.WithTimeout(ctx, freshTime)
		err := from(bounded, c.cfg.Store)
		cancel()
		if _, decided := errors.AsType[*hangar.Error](err); err == nil || decided || ctx.Err() != nil {
			return state.HangarError(err)
		}
		c.cfg.Log.WarnContext(ctx, "the cluster state does not answer: what was pushed is found from memory", "error", err)
		c.mu.Lock()
		c.stale = c.cfg.Now().Add(staleTime)
		c.mu.Unlock()
	}
	return state.HangarError(from(ctx, c.cfg.Memory))
}

// Manifest implements hangar.ImageCatalog.
func (c *Catalog) Manifest(ctx context.Context, repository, reference string) (m hangar.PushedManifest, err error) {
	err = c.read(ctx, func(ctx context.Context, s state.Store) error {
		m, err = manifestOf(ctx, s, repository, reference)
		return err
	})
	return m, err
}

func manifestOf(ctx context.Context, s state.Store, repository, reference string) (hangar.PushedManifest, error) {
	digest := reference
	if !isDigest(reference) {
		t, _, err := state.Read[tag](ctx, s, tagKey(repository, reference))
		if errors.Is(err, state.ErrNotFound) {
			err = notFound(reference)
		}
		if err != nil {
			return hangar.PushedManifest{}, err
		}
		digest = t.Digest
	}
	item, err := s.Get(ctx, manifestKey(repository, digest))
	if errors.Is(err, state.ErrNotFound) {
		err = notFound(reference)
	}
	if err != nil {
		return hangar.PushedManifest{}, err
	}
	return decode(item)
}

func decode(item state.Item) (hangar.PushedManifest, error) {
	m, err := state.Decode[hangar.PushedManifest](item)
	m.Digest, m.Revision = "sha256:"+item.Key[strings.LastIndexByte(item.Key, '/')+1:], int64(item.Revision)
	return m, err
}

// Repository implements hangar.ImageCatalog. What cannot be read is left out.
func (c *Catalog) Repository(ctx context.Context, repository string) (all hangar.PushedRepository, err error) {
	err = c.read(ctx, func(ctx context.Context, s state.Store) error {
		all = hangar.PushedRepository{Manifests: map[string]hangar.PushedManifest{}, Tags: map[string]string{}}
		items, _, err := state.All(ctx, s, state.PushedPrefix+repository+mark, false)
		for _, item := range items {
			kind, name, _ := strings.Cut(strings.TrimPrefix(item.Key, state.PushedPrefix+repository+mark), "/")
			var unreadable error
			switch kind {
			case "manifests":
				var m hangar.PushedManifest
				if m, unreadable = decode(item); unreadable == nil {
					all.Manifests[m.Digest] = m
				}
			case "tags":
				var t tag
				if t, unreadable = state.Decode[tag](item); unreadable == nil {
					all.Tags[name] = t.Digest
				}
			}
			if unreadable != nil {
				c.cfg.Log.ErrorContext(ctx, "record of a repository skipped", "key", item.Key, "error", unreadable)
			}
		}
		return err
	})
	return all, err
}

// Repositories implements hangar.ImageCatalog.
func (c *Catalog) Repositories(ctx context.Context, root string) (paths []string, err error) {
	found := map[string]struct{}{}
	err = c.read(ctx, func(ctx context.Context, s state.Store) error {
		items, _, err := state.All(ctx, s, state.PushedPrefix+root+"/", true)
		for _, item := range items {
			path, rest, _ := strings.Cut(strings.TrimPrefix(item.Key, state.PushedPrefix), mark)
			if strings.HasPrefix(rest, "manifests/") {
				found[path] = struct{}{}
			}
		}
		return err
	})
	return slices.Sorted(maps.Keys(found)), err
}

// Holders implements hangar.ImageCatalog.
func (c *Catalog) Holders(ctx context.Context, repository string) (hosts []hangar.HostID, err error) {
	err = c.read(ctx, func(ctx context.Context, s state.Store) error {
		items, _, err := state.All(ctx, s, hostKey(repository, ""), true)
		hosts = nil
		for _, item := range items {
			hosts = append(hosts, hangar.HostID(strings.TrimPrefix(item.Key, hostKey(repository, ""))))
		}
		return err
	})
	return hosts, err
}

// Push implements hangar.ImageCatalog. It always writes the manifest, so that it conflicts with a
// Delete or Release at the same time.
func (c *Catalog) Push(ctx context.Context, repository string, m hangar.PushedManifest, name string) error {
	if weight(m.Annotations) > maxAnnotations {
		m.Annotations = nil
	}
	return c.repeat(ctx, func() error {
		known, item, err := c.find(ctx, repository, m.Digest)
		if err != nil && hangar.CodeOf(err) != hangar.CodeNotFound {
			return err
		}
		if err := c.admit(ctx, repository, item.Revision == 0, name); err != nil {
			return err
		}
		m.Hosts = append(without(known.Hosts, c.cfg.Host), c.cfg.Host)
		m.Hosts = m.Hosts[max(0, len(m.Hosts)-maxHosts):]
		put, err := state.Write(manifestKey(repository, m.Digest), m)
		if err != nil {
			return err
		}
		txn := state.Txn{
			If:   []state.Compare{{Key: put.Key, Revision: item.Revision}},
			Then: []state.Op{put, state.Put(hostKey(repository, c.cfg.Host), nil)},
		}
		if name != "" {
			put, err := state.Write(tagKey(repository, name), tag{m.Digest})
			if err != nil {
				return err
			}
			txn.Then = append(txn.Then, put)
		}
		_, err = c.cfg.Memory.Txn(ctx, txn)
		return err
	})
}

func weight(annotations map[string]string) (n int) {
	for k, v := range annotations {
		n += len(k) + len(v)
	}
	return n
}

func without(hosts []hangar.HostID, host hangar.HostID) []hangar.HostID {
	return slices.DeleteFunc(slices.Clone(hosts), func(h hangar.HostID) bool { return h == host })
}

// admit refuses a manifest that is new, or a tag, of an organization that has as many as it may.
func (c *Catalog) admit(ctx context.Context, repository string, isNew bool, name string) error {
	root, _ := rootOf(repository)
	page, err := c.cfg.Memory.List(ctx, state.PushedPrefix+root+"/", state.ListOptions{KeysOnly: true, Limit: hangar.MaxPushed})
	if err != nil || len(page.Items) < hangar.MaxPushed {
		return err
	}
	if !isNew && name != "" {
		_, err := c.cfg.Memory.Get(ctx, tagKey(repository, name))
		isNew = errors.Is(err, state.ErrNotFound)
	}
	if isNew {
		return hangar.Errorf(hangar.CodeExhausted, hangar.ReasonQuota,
			"the organization has %d manifests and tags in its repositories, as many as it may; delete some", hangar.MaxPushed)
	}
	return nil
}

// rootOf is the hangar.Repository.Root of a path, and the rest of it.
func rootOf(repository string) (root, name string) {
	first, rest, _ := strings.Cut(repository, "/")
	if first != "orgs" {
		return first, rest
	}
	id, name, _ := strings.Cut(rest, "/")
	return first + "/" + id, name
}

// find reads a manifest from the state.
func (c *Catalog) find(ctx context.Context, repository, digest string) (hangar.PushedManifest, state.Item, error) {
	item, err := c.cfg.Store.Get(ctx, manifestKey(repository, digest))
	if errors.Is(err, state.ErrNotFound) {
		return hangar.PushedManifest{}, state.Item{}, notFound(digest)
	}
	if err != nil {
		return hangar.PushedManifest{}, state.Item{}, err
	}
	m, err := decode(item)
	if err != nil {
		c.cfg.Log.ErrorContext(ctx, "record of a manifest is replaced", "key", item.Key, "error", err)
		m, err = hangar.PushedManifest{Digest: digest}, nil
	}
	return m, item, err
}

// repeat repeats a change that met another.
func (c *Catalog) repeat(ctx context.Context, change func() error) error {
	for {
		err := change()
		if !errors.Is(err, state.ErrConflict) || ctx.Err() != nil {
			return state.HangarError(cmp.Or(ctx.Err(), err))
		}
	}
}

// tagsOf returns the tags that stand for a manifest.
func (c *Catalog) tagsOf(ctx context.Context, repository, digest string) ([]state.Item, error) {
	items, _, err := state.All(ctx, c.cfg.Store, tagKey(repository, ""), false)
	return slices.DeleteFunc(items, func(item state.Item) bool {
		t, unreadable := state.Decode[tag](item)
		return unreadable != nil || t.Digest != digest
	}), err
}

// Delete implements hangar.ImageCatalog. Many tags go before the manifest does; one that a push gives
// it meanwhile goes, too, or the push comes after all of it.
func (c *Catalog) Delete(ctx context.Context, repository, reference string) error {
	if !isDigest(reference) {
		return c.repeat(ctx, func() error {
			item, err := c.cfg.Store.Get(ctx, tagKey(repository, reference))
			if errors.Is(err, state.ErrNotFound) {
				return notFound(reference)
			}
			if err != nil {
				return err
			}
			_, err = c.cfg.Memory.Txn(ctx, state.Txn{If: []state.Compare{state.Unchanged(item)}, Then: []state.Op{state.Delete(item.Key)}})
			return err
		})
	}
	return c.repeat(ctx, func() error {
		_, item, err := c.find(ctx, repository, reference)
		if err != nil {
			return err
		}
		tags, err := c.tagsOf(ctx, repository, reference)
		if err != nil {
			return err
		}
		for len(tags) > deletesAtOnce {
			if _, err := c.cfg.Memory.Txn(ctx, deletion(tags[:deletesAtOnce])); err != nil {
				return err
			}
			tags = tags[deletesAtOnce:]
		}
		_, err = c.cfg.Memory.Txn(ctx, deletion(append(tags, item)))
		return err
	})
}

// deletion deletes keys that have not changed.
func deletion(items []state.Item) state.Txn {
	var txn state.Txn
	for _, item := range items {
		txn.If = append(txn.If, state.Unchanged(item))
		txn.Then = append(txn.Then, state.Delete(item.Key))
	}
	return txn
}

// Release implements hangar.ImageCatalog. A manifest that no host holds any more is gone.
func (c *Catalog) Release(ctx context.Context, repository string, m hangar.PushedManifest) (bool, error) {
	now, item, err := c.find(ctx, repository, m.Digest)
	if hangar.CodeOf(err) == hangar.CodeNotFound {
		return true, nil
	}
	if err != nil || now.Revision != m.Revision {
		return false, state.HangarError(err)
	}
	tags, err := c.tagsOf(ctx, repository, m.Digest)
	if err != nil || len(tags) > 0 {
		return false, state.HangarError(err)
	}
	txn := deletion([]state.Item{item})
	if now.Hosts = without(now.Hosts, c.cfg.Host); len(now.Hosts) > 0 {
		put, err := state.Write(item.Key, now)
		if err != nil {
			return false, err
		}
		txn.Then = []state.Op{put}
	}
	_, err = c.cfg.Memory.Txn(ctx, txn)
	if errors.Is(err, state.ErrConflict) {
		return false, nil
	}
	return err == nil, state.HangarError(err)
}

// RemoveAll removes the records of what is below a hangar.Repository.Root, which no host pushes to any
// more, in transactions that have a condition, too.
func RemoveAll(ctx context.Context, store state.Store, root string, while state.Compare) error {
	items, _, err := state.All(ctx, store, state.PushedPrefix+root+"/", true)
	if err != nil {
		return err
	}
	for batch := range slices.Chunk(items, state.MaxTxnOps) {
		txn := state.Txn{If: []state.Compare{while}}
		for _, item := range batch {
			txn.Then = append(txn.Then, state.Delete(item.Key))
		}
		if _, err := store.Txn(ctx, txn); err != nil {
			return err
		}
	}
	return nil
}
