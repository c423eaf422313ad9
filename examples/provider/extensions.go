package main

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"

	"github.com/hangar-platform/hangar/provider"
)

// maxName bounds the name and id of an extension together, in bytes.
const maxName = 200

// readProvision reads the body of a verified request. The verifier has bounded its size.
func readProvision(w http.ResponseWriter, r *http.Request) (p provider.Provision, ok bool) {
	raw, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(raw, &p)
	}
	if err == nil {
		err = p.Validate()
	}
	if err == nil && len(p.Name)+len(p.ID) > maxName {
		err = errors.New("the name or the id is too long")
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		return p, false
	}
	return p, true
}

// create provisions an extension. The platform may repeat the request.
func (v *server) create(w http.ResponseWriter, r *http.Request) {
	p, ok := readProvision(w, r)
	if !ok {
		return
	}
	e, err := v.store.create(p)
	if err != nil {
		v.failed(w, r, err)
		return
	}
	answer(w, http.StatusCreated, provider.Provisioned{
		ID: e.ID, Config: map[string]string{"SHELF_URL": v.shelfURL(&e), "SHELF_TOKEN": e.Token}, PlatformAppName: v.appName,
	})
}

// shelfURL returns the URL at which an App reaches its shelf: the address that the platform gave the extension in
// the customer's network. A provider with a public DNS name would return that instead.
func (v *server) shelfURL(e *extension) string {
	if v.appName == "" || e.Address == "" {
		return v.baseURL + "/shelf"
	}
	return "http://" + net.JoinHostPort(e.Address, "80")
}

func (v *server) get(w http.ResponseWriter, r *http.Request) {
	e, keys, err := v.store.get(r.PathValue("id"))
	v.answerWith(w, r, e, keys, err)
}

func (v *server) update(w http.ResponseWriter, r *http.Request) {
	p, ok := readProvision(w, r)
	if !ok {
		return
	}
	e, keys, err := v.store.update(r.PathValue("id"), "", func(e *extension) { e.Name = p.Name })
	v.answerWith(w, r, e, keys, err)
}

func (v *server) remove(w http.ResponseWriter, r *http.Request) {
	if err := v.store.remove(r.PathValue("id"), ""); err != nil {
		v.failed(w, r, err)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

func (v *server) answerWith(w http.ResponseWriter, r *http.Request, e extension, keys int, err error) {
	if err != nil {
		v.failed(w, r, err)
		return
	}
	answer(w, http.StatusOK, e.resource(keys))
}

func answer(w http.ResponseWriter, status int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "internal error", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(raw) // a client that is gone cannot be told of an error
}

func (v *server) failed(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, errNotFound) {
		http.Error(w, "not found", http.StatusNotFound)
		return
	}
	if errors.Is(err, errFull) {
		http.Error(w, err.Error(), http.StatusInsufficientStorage)
		return
	}
	v.log.Error("request failed", "path", r.URL.Path, "error", err)
	http.Error(w, "internal error", http.StatusInternalServerError)
}
