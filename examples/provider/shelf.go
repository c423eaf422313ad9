package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"go.etcd.io/bbolt"
)

// The bounds of a shelf.
const (
	maxKey   = 256      // bytes
	maxValue = 64 << 10 // bytes
	maxKeys  = 10_000
)

type addressKey struct{}

// withAddress records the address to which a client connected. With the PROXY protocol this is the address of the
// extension in the customer's network.
func withAddress(ctx context.Context, c net.Conn) context.Context {
	at, _ := netip.ParseAddrPort(c.LocalAddr().String())
	return context.WithValue(ctx, addressKey{}, at.Addr())
}

// serveShelf stores values: it serves PUT, GET and DELETE of /KEY with the token of an App.
func (v *server) serveShelf(w http.ResponseWriter, r *http.Request) {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	key := strings.TrimPrefix(r.URL.Path, "/")
	if !ok || key == "" || len(key) > maxKey {
		http.Error(w, "a request needs a bearer token, and a key of at most 256 bytes", http.StatusBadRequest)
		return
	}
	e, err := v.store.withToken(token)
	if err == nil && !mayBeAt(r.Context(), &e) {
		err = errNotFound // the token of another customer's extension
	}
	if err != nil {
		v.failed(w, r, err)
		return
	}
	switch r.Method {
	case http.MethodGet:
		value, err := v.store.value(e.ID, key)
		if err != nil {
			v.failed(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/octet-stream")
		_, _ = w.Write(value)
	case http.MethodPut:
		value, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxValue))
		if err != nil {
			http.Error(w, "a value has at most 64 KiB", http.StatusRequestEntityTooLarge)
			return
		}
		v.changed(w, r, v.store.setValue(e.ID, key, value))
	case http.MethodDelete:
		v.changed(w, r, v.store.setValue(e.ID, key, nil))
	default:
		http.Error(w, "PUT, GET or DELETE", http.StatusMethodNotAllowed)
	}
}

func (v *server) changed(w http.ResponseWriter, r *http.Request, err error) {
	if err != nil {
		v.failed(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// mayBeAt reports whether a request was sent to the extension's own address, or to no extension's address.
func mayBeAt(ctx context.Context, e *extension) bool {
	at, _ := ctx.Value(addressKey{}).(netip.Addr)
	private := netip.MustParsePrefix("fdaa::/16")
	return !private.Contains(at) || at.String() == e.Address
}

func (s *store) withToken(token string) (e extension, err error) {
	digest := sha256.Sum256([]byte(token))
	err = s.View(func(tx *bbolt.Tx) error {
		e, err = read(tx, string(tx.Bucket(byToken).Get(digest[:])))
		return err
	})
	return e, err
}

func (s *store) value(id, key string) (value []byte, err error) {
	err = s.View(func(tx *bbolt.Tx) error {
		found := tx.Bucket(values).Get([]byte(id + "/" + key))
		if found == nil {
			return errNotFound
		}
		value = bytes.Clone(found)
		return nil
	})
	return value, err
}

// setValue stores a value; nil removes it.
func (s *store) setValue(id, key string, value []byte) error {
	return s.Update(func(tx *bbolt.Tx) error {
		at := []byte(id + "/" + key)
		switch {
		case value == nil:
			return tx.Bucket(values).Delete(at)
		case tx.Bucket(values).Get(at) == nil && count(tx, id) >= maxKeys:
			return errFull
		default:
			return tx.Bucket(values).Put(at, value)
		}
	})
}
