package main

import (
	"crypto/subtle"
	"errors"
	"html/template"
	"net/http"
	"slices"

	"github.com/hangar-platform/hangar/provider"
)

// errFull means that a shelf already has maxKeys keys.
var errFull = errors.New("the shelf is full")

var plans = []string{"small", "large"}

var page = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en">
<head><meta charset="utf-8"><title>{{.Extension.Name}}: shelf</title></head>
<body>
<h1>{{.Extension.Name}}</h1>
<p>Signed in as {{.User}}, {{.Role}}.</p>
<p>Plan {{.Extension.Plan}}, {{.Keys}} keys.</p>
{{if eq .Role "admin"}}<form method="post">
<input type="hidden" name="form" value="{{.Form}}">
<label for="plan">Plan</label> <select id="plan" name="plan">{{range .Plans}}<option>{{.}}</option>{{end}}</select>
<button name="do" value="change">Change</button>
<button name="do" value="delete">Delete the shelf and its content</button>
</form>{{end}}
</body>
</html>
`))

// owner finds the extension of a page, and a session that may see it.
func (v *server) owner(w http.ResponseWriter, r *http.Request) (e extension, keys int, s session, ok bool) {
	s, known := v.sessions.of(r)
	e, keys, err := v.store.get(r.PathValue("id"))
	if err != nil || !known || s.roles[e.OrganizationID] == "" {
		http.Error(w, "There is no such shelf, or you are not signed in. Open it through the platform: hangar extensions open.", http.StatusNotFound)
		return e, 0, s, false
	}
	return e, keys, s, true
}

// dashboard shows an extension to members of its organization.
func (v *server) dashboard(w http.ResponseWriter, r *http.Request) {
	e, keys, s, ok := v.owner(w, r)
	if !ok {
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; form-action 'self'; frame-ancestors 'none'")
	w.Header().Set("Cache-Control", "no-store")
	err := page.Execute(w, struct {
		Extension        extension
		Keys             int
		User, Role, Form string
		Plans            []string
	}{e, keys, s.userName, s.roles[e.OrganizationID], s.form, plans})
	if err != nil {
		v.log.Warn("page", "error", err)
	}
}

// change applies the form of the page, which only admins can submit, and notifies the platform.
func (v *server) change(w http.ResponseWriter, r *http.Request) {
	e, _, s, ok := v.owner(w, r)
	if !ok {
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 4<<10)
	if s.roles[e.OrganizationID] != provider.RoleAdmin || subtle.ConstantTimeCompare([]byte(r.PostFormValue("form")), []byte(s.form)) != 1 {
		http.Error(w, "Only admins of the organization may do this, and only with the form of the page.", http.StatusForbidden)
		return
	}
	var err error
	switch plan := r.PostFormValue("plan"); {
	case r.PostFormValue("do") == "delete":
		err = v.store.remove(e.ID, provider.ResourceDeleted)
	case slices.Contains(plans, plan):
		_, _, err = v.store.update(e.ID, provider.ResourceUpdated, func(e *extension) { e.Plan = plan })
	default:
		http.Error(w, "There is no such plan.", http.StatusBadRequest)
		return
	}
	if err != nil {
		v.failed(w, r, err)
		return
	}
	if r.PostFormValue("do") == "delete" {
		_, _ = w.Write([]byte("The shelf is deleted.\n"))
		return
	}
	http.Redirect(w, r, v.baseURL+"/dashboard/"+e.ID, http.StatusSeeOther)
}
