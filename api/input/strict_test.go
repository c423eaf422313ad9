package input

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// TestUnknownProperties: an error has the path of an unknown property, even one with a similar name.
func TestUnknownProperties(t *testing.T) {
	type accessRequest struct {
		Action  hangar.Action    `json:"action"` // decodes itself
		Org     hangar.OrgSlug   `json:"org_slug"`
		Machine hangar.MachineID `json:"machine_id"`
	}
	type wish struct {
		hangar.TokenCreate
		Access  *accessRequest               `json:"access"`
		ByName  map[string]hangar.Grant      `json:"by_name"`
		Hidden  string                       `json:"-"`
		Pointer *[]hangar.CommandRule        `json:"pointer"`
		Secret  hangar.Sensitive             `json:"secret"`
		Actions hangar.Action                `json:"mask"`
		Deep    []map[string][]accessRequest `json:"deep"`
	}
	for body, want := range map[string]string{
		`{"kind":"deploy","apps":["a"]}`:                                "",
		`{"kind":"deploy","app":["a"]}`:                                 "app",
		`{"KIND":"deploy","Apps":["a"]}`:                                "",
		`{"kind":"deploy","hidden":"x"}`:                                "hidden",
		`{"commands":[{"args":["ls"],"exact":true},{"exakt":true}]}`:    "commands[1].exakt",
		`{"access":{"machine":"x"}}`:                                    "access.machine",
		`{"access":null}`:                                               "",
		`{"access":{"action":["read"]}}`:                                "",
		`{"by_name":{"any":{"org":"o","aps":[]}}}`:                      "by_name.any.aps",
		`{"pointer":[{"arguments":["x"]}]}`:                             "pointer[0].arguments",
		`{"deep":[{"a":[{}]},{"b":[{},{"org_slug":"a","organ":"a"}]}]}`: "deep[1].b[1].organ",
		`{"secret":"x","mask":["read"]}`:                                "",
		`{"":1}`:                                                        `""`,
	} {
		err := UnknownProperty([]byte(body), reflect.TypeFor[wish]())
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.HasPrefix(err.Error(), fmt.Sprintf("the body has the unknown property %q", want))):
			t.Errorf("%s: %v, want one of %q", body, err, want)
		}
	}
}

// TestWrongTypeOfEmbeddedProperty: an error names the property as the client has sent it.
func TestWrongTypeOfEmbeddedProperty(t *testing.T) {
	type inner struct {
		URL string `json:"url"`
	}
	type Settings struct {
		Terms inner `json:"terms"`
	}
	type body struct {
		Name string `json:"name"`
		Settings
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(`{"name":"x","terms":{"url":7}}`))
	if _, err := Decode[body](r); err == nil || !strings.HasPrefix(err.Error(), "invalid terms.url: ") {
		t.Errorf("it is answered %v", err)
	}
}
