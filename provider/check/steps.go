package check

import (
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// create creates the extension. It reports whether there is one to test.
func (k *checker) create(ctx context.Context) bool {
	const rule = "an extension is created"
	c := call{http.MethodPost, "/extensions", k.provision}
	a, err := k.send(ctx, c)
	if err != nil {
		k.broken(rule, "%s: %v", c, err)
		return false
	}
	if !a.ok() {
		k.broken(rule, "%s is answered %d", c, a.status)
		return false
	}
	err = a.decode(&k.made)
	if err == nil {
		err = k.made.Validate()
	}
	if err != nil {
		k.broken(rule, "%s: %v", c, err)
		return k.made.ID != "" // the later steps delete it
	}
	k.kept(rule)
	const inTime = "the answer comes within 5 seconds"
	if a.took > answerWithin {
		k.broken(inTime, "%s took %s", c, a.took.Round(time.Millisecond))
	} else {
		k.kept(inTime)
	}
	k.config()
	return true
}

// config checks the values for environment variables.
func (k *checker) config() {
	const rule = "config has names of environment variables"
	for name := range k.made.Config {
		if !isVariable(name) {
			k.broken(rule, "a member of config has a name that is none: letters, digits and _, no digit first")
			return
		}
	}
	k.kept(rule)
}

func isVariable(name string) bool {
	for i, c := range name {
		if c != '_' && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// repeat creates the extension again, as after a lost answer.
func (k *checker) repeat(ctx context.Context) {
	const rule = "creating it again answers the same"
	c := call{http.MethodPost, "/extensions", k.provision}
	a, err := k.send(ctx, c)
	if err != nil || !a.ok() {
		k.failed(rule, c, a, err)
		return
	}
	var again provider.Provisioned
	switch err := a.decode(&again); {
	case err != nil:
		k.broken(rule, "%s: %v", c, err)
	case again.ID != k.made.ID:
		k.broken(rule, "a second %s with the same id creates another extension", c)
	case !maps.Equal(again.Config, k.made.Config):
		k.broken(rule, "a second %s with the same id has another config", c)
	default:
		k.kept(rule)
	}
}

// failed reports an error, or an answer with the wrong status.
func (k *checker) failed(rule string, c call, a *answer, err error) {
	if err != nil {
		k.broken(rule, "%s: %v", c, err)
		return
	}
	k.broken(rule, "%s is answered %d", c, a.status)
}

// resource gets the extension.
func (k *checker) resource(ctx context.Context, rule string, c call) (provider.Resource, bool) {
	var r provider.Resource
	a, err := k.send(ctx, c)
	if err != nil || !a.ok() {
		k.failed(rule, c, a, err)
		return r, false
	}
	if err := a.decode(&r); err != nil {
		k.broken(rule, "%s: %v", c, err)
		return r, false
	}
	switch {
	case r.ID != k.made.ID:
		k.broken(rule, "%s answers with a different id from POST", c)
	case r.Status == "":
		k.broken(rule, "%s answers without a status", c)
	default:
		return r, true
	}
	return r, false
}

// ready waits until the extension is ready.
func (k *checker) ready(ctx context.Context) {
	const rule = "it becomes ready"
	until, pause := time.Now().Add(k.ReadyWithin), firstLook
	for {
		r, ok := k.resource(ctx, rule, k.get())
		switch {
		case !ok:
			return
		case r.Status == provider.StatusReady:
			k.kept(rule)
			return
		case r.Status == provider.StatusError:
			k.broken(rule, "its status is %q", r.Status)
			return
		case time.Now().After(until):
			k.broken(rule, "it was not ready within %s", k.ReadyWithin)
			return
		}
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, lastLook)
	}
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// unknownMembers sends a member that a later version of the platform might add.
func (k *checker) unknownMembers(ctx context.Context) {
	const rule = "members that it does not know are ignored"
	raw, err := json.Marshal(k.provision)
	if err != nil {
		k.broken(rule, "%v", err)
		return
	}
	body := json.RawMessage(strings.TrimSuffix(string(raw), "}") + `,"x_check":{"a":[1,null]}}`)
	c := call{http.MethodPost, "/extensions", body}
	if a, err := k.send(ctx, c); err != nil || !a.ok() {
		k.failed(rule, c, a, err)
		return
	}
	k.kept(rule)
}

// update sends a PATCH that changes nothing.
func (k *checker) update(ctx context.Context) {
	const rule = "it is updated"
	if _, ok := k.resource(ctx, rule, call{http.MethodPatch, k.at(""), k.provision}); ok {
		k.kept(rule)
	}
}

// signOn opens the extension as a browser does.
func (k *checker) signOn(ctx context.Context) {
	const rule, once, forged = "a browser is redirected by the signed link", "the link works once", "a link with another signature is refused"
	unsigned, err := k.request(ctx, call{method: http.MethodGet, path: k.at("/sso")})
	if err != nil {
		k.broken(rule, "%v", err)
		return
	}
	link, err := provider.Signer{Secret: k.Secret}.SignLink(unsigned.URL)
	if err != nil {
		k.broken(rule, "%v", err)
		return
	}
	open := func() (*answer, error) {
		r := unsigned.Clone(ctx)
		r.URL = link
		return k.do(r)
	}
	c := call{method: http.MethodGet, path: k.at("/sso")}
	a, err := open()
	if err != nil || a.status/100 != 3 {
		k.failed(rule, c, a, err)
	} else if to, err := unsigned.URL.Parse(a.header.Get("Location")); err != nil || a.header.Get("Location") == "" {
		k.broken(rule, "%s has no Location", c)
	} else {
		k.kept(rule)
		k.authorize(to.String(), to.Query())
	}
	if a, err = open(); err != nil || !a.refused() {
		k.failed(once, c, a, err)
	} else {
		k.kept(once)
	}
	signed, _, _ := strings.Cut(link.RawQuery, "&signature=")
	link.RawQuery = signed + "&signature=" + provider.Signature(k.Secret+"x", []byte(signed))
	if a, err = open(); err != nil || !a.refused() {
		k.failed(forged, c, a, err)
	} else {
		k.kept(forged)
	}
}

// authorize checks the redirect of a browser that is not signed in.
func (k *checker) authorize(to string, query map[string][]string) {
	const rule = "a browser without a session is sent to sign in"
	if k.AuthorizeURL == "" {
		k.skipped(rule, "no authorization URL was given")
		return
	}
	place, _, _ := strings.Cut(to, "?")
	one := func(name string) string {
		if len(query[name]) != 1 {
			return ""
		}
		return query[name][0]
	}
	switch {
	case place != k.AuthorizeURL:
		k.broken(rule, "the redirect does not lead to the authorization URL")
	case one("client_id") == "" || one("redirect_uri") == "":
		k.broken(rule, "the redirect needs one client_id and one redirect_uri")
	case one("response_type") != "code" || one("scope") != "read":
		k.broken(rule, "the redirect needs response_type=code and scope=read")
	case one("state") == "":
		k.broken(rule, "the redirect has no state, so an attacker can complete another user's sign-in")
	case one("organization_id") == "":
		k.advised(rule, "the redirect has no organization_id: the user has to choose the organization")
	default:
		k.kept(rule)
	}
}

// events sends an event of a Machine twice, as after a lost answer.
func (k *checker) events(ctx context.Context) {
	const rule = "events of Machines are accepted, more than once"
	event := provider.MachineEvent{
		ID: k.provision.ID, Source: "/check", Type: provider.MachineEventType + "start", Time: time.Now(),
		MachineID: "00000000000000", Status: "started", Data: json.RawMessage(`{}`),
	}
	c := call{method: http.MethodPost, path: "/extensions/events"}
	for range 2 {
		r, err := event.NewRequest(ctx, k.base+c.path)
		if err == nil {
			err = provider.Signer{Secret: k.Secret}.Sign(r)
		}
		if err != nil {
			k.broken(rule, "%v", err)
			return
		}
		switch a, err := k.do(r); {
		case err == nil && a.status == http.StatusNotFound:
			k.skipped(rule, "there is nothing at %s: only providers that run on the platform need it", c)
			return
		case err != nil || !a.ok():
			k.failed(rule, c, a, err)
			return
		}
	}
	k.kept(rule)
}

// nonsense sends signed but invalid bodies.
func (k *checker) nonsense(ctx context.Context) {
	const rule = "a signed body that lacks members is refused, not an error of the server"
	for _, body := range []any{json.RawMessage(`{}`), json.RawMessage(`{"id":7,"name":[]}`), json.RawMessage(`{"name":"` + strings.Repeat("x", 100_000) + `"}`)} {
		c := call{http.MethodPost, "/extensions", body}
		if a, err := k.send(ctx, c); err != nil || !a.refused() {
			k.failed(rule, c, a, err)
			return
		}
	}
	k.kept(rule)
}

// removed deletes the extension twice, and one that never existed.
func (k *checker) removed(ctx context.Context) {
	const rule, again, gone, unknown = "it is deleted", "deleting it again succeeds or is 404", "it is gone after that", "deleting what never was succeeds or is 404"
	if a, err := k.send(ctx, k.remove()); err != nil || !a.ok() && a.status != http.StatusNotFound {
		k.failed(rule, k.remove(), a, err)
		return
	}
	k.kept(rule)
	for _, one := range []struct {
		rule string
		call call
	}{{again, k.remove()}, {unknown, call{method: http.MethodDelete, path: k.at("-never-was")}}} {
		if a, err := k.send(ctx, one.call); err != nil || !a.ok() && a.status != http.StatusNotFound {
			k.failed(one.rule, one.call, a, err)
		} else {
			k.kept(one.rule)
		}
	}
	if a, err := k.send(ctx, k.get()); err != nil || a.status != http.StatusNotFound && a.status != http.StatusGone {
		k.failed(gone, k.get(), a, err)
	} else {
		k.kept(gone)
	}
}
