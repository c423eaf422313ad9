package api

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/input"
	"github.com/hangar-platform/hangar/api/router"
)

// lenientOperations accept bodies with properties that this server does not know, because clients of
// the public platform send them. None of them grants rights.
var lenientOperations = []string{
	"acquireLease", "beginBuild", "beginRelease", "createMachine", "createVolume", "execMachine", "extendVolume", "finishBuild", "followRelease", "keepMachineBusy", "mergeMetadata", "placeMachines", "postVolume",
	"receiveExtensionHook", "replaceMetadata", "setMetadataKey", "signalMachine", "stopMachine", "updateMachine", "updateVolume",
}

// grantingTags are the groups of operations whose bodies grant rights or access.
var grantingTags = []string{"Organizations", "Tokens", "Apps", "Addresses", "Secrets", "Keys", "Images", "Registries", "Identity", "WireGuard", "Certificates", "Extensions", "Webhooks", "Hosts"}

// TestBodiesThatGrantRightsAreStrict walks all routes: except for the lenient ones, they refuse unknown
// properties in their bodies, at any depth.
func TestBodiesThatGrantRightsAreStrict(t *testing.T) {
	var found []string
	for _, r := range mounted().Routes() {
		if r.Body == nil {
			continue
		}
		if r.Lenient {
			found = append(found, r.ID)
			if slices.Contains(grantingTags, r.Tag) && r.ID != "receiveExtensionHook" { // which tells, and grants nothing
				t.Errorf("%s %s grants rights, and is lenient", r.Method, r.Path)
			}
			continue
		}
		refusesUnknown(t, r)
	}
	if slices.Sort(found); !slices.Equal(found, lenientOperations) {
		t.Errorf("lenient are %q, want %q", found, lenientOperations)
	}
}

// refusesUnknown sends the example of a body with an unknown property at every place. The server has no
// services, so a body that reaches one causes a panic.
func refusesUnknown(t *testing.T, r router.Route) {
	t.Helper()
	for _, path := range unknowns(t, asJSON(t, router.ExampleOf(r.Body)), reflect.TypeOf(r.Body)) {
		s := mounted()
		s.Router.Auth = allow{}
		url := router.InBraces.ReplaceAllString(r.Path, "web")
		url = strings.NewReplacer("/machines/web", "/machines/d8912340000002", "/volumes/web", "/volumes/vol_0123456789abcdef").Replace(url)
		w, in := httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), r.Method, url, strings.NewReader(path.body))
		in.Header.Set("Authorization", "Bearer x")
		func() {
			defer func() {
				if fault := recover(); fault != nil {
					t.Errorf("%s %s takes %s: %s", r.Method, r.Path, path.at, path.body)
				}
			}()
			s.serve(w, in)
		}()
		var answer struct{ Error string }
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusBadRequest || !strings.HasPrefix(answer.Error, fmt.Sprintf("the body has the unknown property %q", path.at)) {
			t.Errorf("%s %s answers %d %s to %s, want that %s is unknown", r.Method, r.Path, w.Code, w.Body, path.body, path.at)
		}
	}
}

// unknown is a body with one unknown property.
type unknown struct{ at, body string }

const unknownName = "x_unknown"

// unknowns returns bodies made of an example with an unknown property: at its top, in every object of
// it, and in every list of objects of its type.
func unknowns(t *testing.T, example []byte, body reflect.Type) []unknown {
	t.Helper()
	var list []unknown
	var places func(v any, path string, whole func(any) any)
	places = func(v any, path string, whole func(any) any) {
		switch v := v.(type) {
		case map[string]any:
			more := map[string]any{unknownName: 1}
			maps.Copy(more, v)
			list = append(list, unknown{within(path, unknownName), string(asJSON(t, whole(more)))})
			for k, sub := range v {
				places(sub, within(path, k), func(sub any) any {
					changed := map[string]any{}
					maps.Copy(changed, v)
					changed[k] = sub
					return whole(changed)
				})
			}
		case []any:
			for i, sub := range v {
				places(sub, path+"[0]", func(sub any) any {
					changed := slices.Clone(v)
					changed[i] = sub
					return whole(changed)
				})
			}
		}
	}
	var tree map[string]any
	if err := json.Unmarshal(example, &tree); err != nil {
		t.Fatal(err)
	}
	places(tree, "", func(v any) any { return v })
	// Types with their own decoder are skipped.
	return slices.DeleteFunc(list, func(u unknown) bool {
		return input.UnknownProperty([]byte(u.body), body) == nil && strings.Contains(u.at, ".")
	})
}

// allow authenticates every caller as an administrator.
type allow struct{ hangar.Authenticator }

func (allow) Authenticate(context.Context, string) (hangar.Principal, error) {
	return hangar.Principal{Subject: "admin", Admin: true}, nil
}

// within is the path of a property.
func within(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }
