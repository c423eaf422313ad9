package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/hangar-platform/hangar/provider"
)

// errNotFound means that an extension or key does not exist.
var errNotFound = errors.New("not found")

// extension is a shelf and its owner.
type extension struct {
	ID             string `json:"id"`
	PlatformID     string `json:"platform_id"` // of the extension, on the platform
	Name           string `json:"name"`
	Plan           string `json:"plan"`
	OrganizationID string `json:"organization_id"`
	UserID         string `json:"user_id"`
	Address        string `json:"address,omitempty"` // on the customer's network
	Token          string `json:"token"`             // of the App
}

// resource returns the extension as the platform sees it.
func (e *extension) resource(keys int) provider.Resource {
	usage, _ := json.Marshal(map[string]int{"keys": keys}) // integers always encode
	return provider.Resource{
		ID: e.ID, Name: e.Name, Plan: e.Plan, Status: provider.StatusReady, OrganizationID: e.OrganizationID, UserID: e.UserID,
		Extra: map[string]json.RawMessage{"usage": usage},
	}
}

// The buckets of the database.
var (
	byID       = []byte("extensions")   // id → extension
	byPlatform = []byte("platform ids") // id on the platform → id
	byToken    = []byte("tokens")       // SHA-256 of a token → id
	values     = []byte("values")       // id, a slash and a key → value
	outbox     = []byte("outbox")       // sequence number → webhook
	seen       = []byte("events")       // source and id of an event of a Machine → event
)

// store is the provider's database. Each of its methods is one transaction.
type store struct{ *bbolt.DB }

func openStore(path string) (*store, error) {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, name := range [][]byte{byID, byPlatform, byToken, values, outbox, seen} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &store{db}, nil
}

// create creates an extension, or returns the existing one with the same id on the platform.
func (s *store) create(p provider.Provision) (e extension, err error) {
	err = s.Update(func(tx *bbolt.Tx) error {
		if id := tx.Bucket(byPlatform).Get([]byte(p.ID)); id != nil {
			e, err = read(tx, string(id))
			return err
		}
		e = extension{
			ID: "shelf-" + strings.ToLower(rand.Text()[:12]), PlatformID: p.ID, Name: p.Name, Plan: "small",
			OrganizationID: p.OrganizationID, UserID: p.UserID, Token: rand.Text(),
		}
		if p.IPAddress.IsValid() {
			e.Address = p.IPAddress.String()
		}
		digest := sha256.Sum256([]byte(e.Token))
		return errors.Join(
			tx.Bucket(byPlatform).Put([]byte(p.ID), []byte(e.ID)),
			tx.Bucket(byToken).Put(digest[:], []byte(e.ID)),
			write(tx, &e),
		)
	})
	return e, err
}

func read(tx *bbolt.Tx, id string) (e extension, err error) {
	raw := tx.Bucket(byID).Get([]byte(id))
	if raw == nil {
		return e, errNotFound
	}
	return e, json.Unmarshal(raw, &e)
}

func write(tx *bbolt.Tx, e *extension) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return tx.Bucket(byID).Put([]byte(e.ID), raw)
}

// get returns an extension and the number of keys on its shelf.
func (s *store) get(id string) (e extension, keys int, err error) {
	err = s.View(func(tx *bbolt.Tx) error {
		e, err = read(tx, id)
		keys = count(tx, id)
		return err
	})
	return e, keys, err
}

func count(tx *bbolt.Tx, id string) (n int) {
	prefix := id + "/"
	c := tx.Bucket(values).Cursor()
	for k, _ := c.Seek([]byte(prefix)); strings.HasPrefix(string(k), prefix); k, _ = c.Next() {
		n++
	}
	return n
}

// update changes an extension, and notifies the platform of the action tell unless it is empty.
func (s *store) update(id string, tell provider.Action, change func(e *extension)) (e extension, keys int, err error) {
	err = s.Update(func(tx *bbolt.Tx) error {
		if e, err = read(tx, id); err != nil {
			return err
		}
		change(&e)
		keys = count(tx, id)
		return errors.Join(write(tx, &e), post(tx, tell, e.resource(keys)))
	})
	return e, keys, err
}

// remove removes an extension and the values on its shelf. It succeeds if the extension does not exist.
func (s *store) remove(id string, tell provider.Action) error {
	return s.Update(func(tx *bbolt.Tx) error {
		e, err := read(tx, id)
		if errors.Is(err, errNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		err = post(tx, tell, e.resource(0))
		digest := sha256.Sum256([]byte(e.Token))
		c := tx.Bucket(values).Cursor()
		prefix := id + "/"
		for k, _ := c.Seek([]byte(prefix)); strings.HasPrefix(string(k), prefix); k, _ = c.Seek([]byte(prefix)) {
			err = errors.Join(err, c.Delete())
		}
		return errors.Join(err,
			tx.Bucket(byID).Delete([]byte(id)), tx.Bucket(byPlatform).Delete([]byte(e.PlatformID)), tx.Bucket(byToken).Delete(digest[:]))
	})
}
