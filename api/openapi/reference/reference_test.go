package reference_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/openapi/reference"
)

// hostile is in every text, and must not be taken for HTML.
const hostile = `<script>alert("x")</script>`

func document() *openapi.Document {
	room := &openapi.Schema{Ref: "#/components/schemas/Room"}
	text := &openapi.Schema{Type: []string{"string"}}
	return &openapi.Document{
		Info: openapi.Info{Title: "Rooms" + hostile, Version: "1", Description: "First `code` paragraph.\n\n- one\n- two " + hostile + "\n\nA lone ` and " + hostile},
		Tags: []openapi.Tag{{Name: "Rooms", Description: hostile}, {Name: "Empty"}},
		Paths: map[string]map[string]*openapi.Operation{
			"/rooms/{room}": {
				"get": {
					ID: "getRoom", Tags: []string{"Rooms"}, Samples: []openapi.Sample{{Lang: "Shell", Source: "rooms show a7"}}, Summary: "Get " + hostile, Description: hostile, Security: []map[string][]string{{}},
					Parameters: []openapi.Parameter{{Name: "room", In: "path", Description: hostile, Schema: text, Example: "a7"}},
					Responses: map[string]*openapi.Response{
						"200": {Content: map[string]openapi.Media{"application/json": {Schema: room, Example: map[string]string{"name": hostile}}}},
						"404": {Ref: "#/components/responses/NotFound"},
					},
				},
				"post": {
					ID: "setRoom", Tags: []string{"Rooms"}, Summary: "Set a room",
					RequestBody: &openapi.RequestBody{Content: map[string]openapi.Media{"application/json": {Schema: room, Example: map[string]string{"name": "it's"}}}},
					Responses:   map[string]*openapi.Response{"204": {}},
				},
			},
		},
		Components: openapi.Components{
			Responses: map[string]*openapi.Response{
				"NotFound": {Description: "Not Found", Content: map[string]openapi.Media{"application/json": {Example: map[string]string{"error": hostile}}}},
			},
			Schemas: map[string]*openapi.Schema{"Room": {
				Type: []string{"object"}, Required: []string{"name"},
				Properties: map[string]*openapi.Schema{
					"name":  {Type: []string{"string"}, Description: hostile, Enum: []any{hostile}},
					"walls": {Type: []string{"array", "null"}, Items: room},
					"tags":  {Type: []string{"object"}, AdditionalProperties: text},
					"other": {AnyOf: []*openapi.Schema{room, {Type: []string{"null"}}}},
				},
			}},
		},
	}
}

func TestHTML(t *testing.T) {
	raw, err := reference.HTML(document(), "/rooms.json")
	if err != nil {
		t.Fatal(err)
	}
	html := string(raw)
	for _, want := range []string{
		`id="getRoom"`, `id="schema-Room"`, `id="error-404"`, `id="tag-Rooms"`, `href="#error-404"`, `href="/rooms.json"`, "needs no token",
		"First <code>code</code> paragraph.", "<li>one</li>", "A lone ` and ", "200 OK", "204 No Content", "No body.", "which may be left out",
		`list of <a href="#schema-Room">Room</a>`, "object of string", "required", "curl $HANGAR/rooms/a7", "<pre>rooms show a7</pre>", `data-where="GET /rooms/{room}"`, "/rooms/{room} \\\n", `it&#39;\&#39;&#39;s`,
	} {
		if !strings.Contains(html, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	for _, bad := range []string{hostile, "<script>alert", "Empty", "ZgotmplZ", "<no value>", "%!"} {
		if strings.Contains(html, bad) {
			t.Errorf("the page has %q", bad)
		}
	}
}

// TestSelfContained: the page is well-formed and loads nothing, and every link in it leads somewhere.
func TestSelfContained(t *testing.T) {
	raw, err := reference.HTML(document(), "/rooms.json")
	if err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(strings.NewReader(string(raw)))
	d.Strict = false
	d.AutoClose = append([]string{"meta"}, xml.HTMLAutoClose...)
	d.Entity = xml.HTMLEntity
	ids, links, scripts := map[string]bool{}, map[string]bool{}, 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}
		switch start.Name.Local {
		case "script":
			scripts++
		case "link", "img", "iframe", "object":
			t.Errorf("the page has a %s", start.Name.Local)
		}
		for _, a := range start.Attr {
			switch a.Name.Local {
			case "id":
				if ids[a.Value] {
					t.Errorf("two things are at #%s", a.Value)
				}
				ids[a.Value] = true
			case "href":
				links[a.Value] = true
			case "src", "style", "onclick":
				t.Errorf("%s has %s", start.Name.Local, a.Name.Local)
			}
		}
	}
	if scripts != 1 {
		t.Errorf("the page has %d scripts", scripts)
	}
	for link := range links {
		if at, inside := strings.CutPrefix(link, "#"); inside && !ids[at] {
			t.Errorf("nothing is at %s", link)
		} else if !inside && link != "/rooms.json" {
			t.Errorf("a link leads to %s", link)
		}
	}
}
