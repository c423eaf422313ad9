// Package reference renders an OpenAPI document as one page of HTML for people.
//
// The page loads nothing: its style and the script of its search field are in it, and Policy allows no
// other script. It follows the light or dark mode of the reader's system. Every operation, schema and
// error has an anchor: "#createApp", "#schema-App", "#error-404". Texts of the document are never
// trusted as HTML. Of Markdown, paragraphs, lists with dashes and `code` are rendered.
//
// HTML changes nothing in the document and may be called from many goroutines.
package reference

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/hangar-platform/hangar/api/openapi"
)

//go:embed page.html
var source string

//go:embed search.js
var search string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"markdown": markdown, "type": typeOf, "json": indented, "anchor": anchorOf,
	"search": func() template.JS { return template.JS(search) }, //nolint:gosec // it is a part of this package
	"status": statusText,
}).Parse(source))

// Policy is the Content-Security-Policy of the page.
func Policy() string {
	sum := sha256.Sum256([]byte(search))
	return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; frame-ancestors 'none'; base-uri 'none'"
}

// HTML returns the page of a document. url is where the document itself is served.
func HTML(d *openapi.Document, url string) ([]byte, error) {
	view := pageView{Document: d, URL: url}
	for _, tag := range d.Tags {
		view.Groups = append(view.Groups, group{Tag: tag, Operations: operationsOf(d, tag.Name)})
	}
	sent := sentSchemas(d)
	for _, name := range slices.Sorted(maps.Keys(d.Components.Schemas)) {
		view.Schemas = append(view.Schemas, named{name, sent[name], d.Components.Schemas[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(d.Components.Responses)) {
		for status := http.StatusBadRequest; status < 600; status++ {
			if r := d.Components.Responses[name]; r.Description == http.StatusText(status) {
				view.Errors = append(view.Errors, failure{status, r.Content[mediaJSON].Example})
			}
		}
	}
	slices.SortFunc(view.Errors, func(a, b failure) int { return cmp.Compare(a.Status, b.Status) })
	var b bytes.Buffer
	err := page.Execute(&b, view)
	return b.Bytes(), err
}

const mediaJSON = "application/json"

// pageView is what the template sees.
type pageView struct {
	*openapi.Document
	URL     string
	Groups  []group
	Schemas []named
	Errors  []failure
}

type group struct {
	openapi.Tag
	Operations []operation
}

type operation struct {
	*openapi.Operation
	Method, Path string
	Public       bool
	Body         *content
	Status       string // of success
	Answers      []content
	Failures     []string // status codes
}

type content struct {
	Type     string // of media
	Required bool
	openapi.Media
}

type named struct {
	Name   string
	Sent   bool // by clients
	Schema *openapi.Schema
}

type failure struct {
	Status  int
	Example any
}

// operationsOf lists the operations of a tag by path, reads before writes.
func operationsOf(d *openapi.Document, tag string) []operation {
	var list []operation
	for path, methods := range d.Paths {
		for method, op := range methods {
			if slices.Contains(op.Tags, tag) {
				list = append(list, viewOperation(strings.ToUpper(method), path, op))
			}
		}
	}
	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	slices.SortFunc(list, func(a, b operation) int {
		return cmp.Or(cmp.Compare(a.Path, b.Path), cmp.Compare(slices.Index(methods, a.Method), slices.Index(methods, b.Method)))
	})
	return list
}

func viewOperation(method, path string, op *openapi.Operation) operation {
	// An entry without a scheme allows requests without a token.
	free := slices.ContainsFunc(op.Security, func(schemes map[string][]string) bool { return len(schemes) == 0 })
	o := operation{Operation: op, Method: method, Path: path, Public: free}
	if op.RequestBody != nil {
		o.Body = &content{mediaJSON, op.RequestBody.Required, op.RequestBody.Content[mediaJSON]}
	}
	for _, status := range slices.Sorted(maps.Keys(op.Responses)) {
		if status >= "400" {
			o.Failures = append(o.Failures, status)
			continue
		}
		o.Status = status
		for _, media := range slices.Sorted(maps.Keys(op.Responses[status].Content)) {
			o.Answers = append(o.Answers, content{media, true, op.Responses[status].Content[media]})
		}
	}
	return o
}

// sentSchemas are the names of the schemas in bodies of requests.
func sentSchemas(d *openapi.Document) map[string]bool {
	sent := map[string]bool{}
	var walk func(s *openapi.Schema)
	walk = func(s *openapi.Schema) {
		if s == nil {
			return
		}
		if name := s.Ref[strings.LastIndex(s.Ref, "/")+1:]; name != "" && !sent[name] {
			sent[name] = true
			walk(d.Components.Schemas[name])
		}
		walk(s.Items)
		if more, ok := s.AdditionalProperties.(*openapi.Schema); ok {
			walk(more)
		}
		for _, sub := range s.AnyOf {
			walk(sub)
		}
		for _, sub := range s.Properties {
			walk(sub)
		}
	}
	for _, methods := range d.Paths {
		for _, op := range methods {
			if op.RequestBody != nil {
				walk(op.RequestBody.Content[mediaJSON].Schema)
			}
		}
	}
	return sent
}

// Curl is a command that makes the request.
func (o operation) Curl() (string, error) {
	path := o.Path
	for _, p := range o.Parameters {
		if p.In == "path" {
			path = strings.ReplaceAll(path, "{"+p.Name+"}", fmt.Sprint(p.Example))
		}
	}
	line := "curl"
	if o.Method != http.MethodGet && (o.Method != http.MethodPost || o.Body == nil) {
		line += " -X " + o.Method
	}
	if !o.Public {
		line += ` -H "Authorization: Bearer $TOKEN"`
	}
	line += " $HANGAR" + path
	if o.Body != nil {
		raw, err := json.Marshal(o.Body.Example)
		if err != nil {
			return "", err
		}
		line += " \\\n  -d '" + strings.ReplaceAll(string(raw), "'", `'\''`) + "'"
	}
	return line, nil
}

// Properties of an object, in the order of their names.
func (n named) Properties() []property {
	var list []property
	for _, name := range slices.Sorted(maps.Keys(n.Schema.Properties)) {
		p := property{Name: name, Required: slices.Contains(n.Schema.Required, name), Schema: n.Schema.Properties[name]}
		switch {
		case n.Sent && p.Required:
			p.Note = "required"
		case !n.Sent && !p.Required:
			p.Note = "not always there"
		}
		list = append(list, p)
	}
	return list
}

type property struct {
	Name     string
	Required bool
	Note     string
	*openapi.Schema
}

// typeOf returns the type of a value as HTML. It does not mention null for a value that may be left
// out.
func typeOf(s *openapi.Schema, required bool) template.HTML {
	switch {
	case s == nil:
		return ""
	case s.Ref != "":
		name := template.HTMLEscapeString(s.Ref[strings.LastIndex(s.Ref, "/")+1:])
		return template.HTML(`<a href="#schema-` + name + `">` + name + `</a>`) //nolint:gosec // it is escaped
	case len(s.AnyOf) > 0:
		var words []string
		for _, one := range s.AnyOf {
			if word := string(typeOf(one, required)); word != "" && !slices.Contains(words, word) {
				words = append(words, word)
			}
		}
		return template.HTML(strings.Join(words, " or ")) //nolint:gosec // it is made of what is escaped
	case len(s.Enum) > 0:
		var words []string
		for _, v := range s.Enum {
			raw, _ := json.Marshal(v)
			words = append(words, "<code>"+template.HTMLEscapeString(string(raw))+"</code>")
		}
		return template.HTML(strings.Join(words, ", ")) //nolint:gosec // it is escaped
	case len(s.Type) == 0:
		return "any"
	}
	var words []string
	for _, t := range s.Type {
		switch {
		case t == "null" && !required:
			continue
		case t == "array" && s.Items != nil:
			t = "list of " + string(typeOf(s.Items, false))
		case t == "object" && s.Properties == nil && s.AdditionalProperties != nil:
			if of, ok := s.AdditionalProperties.(*openapi.Schema); ok {
				t = "object of " + string(typeOf(of, false))
			}
		case t == "string" && s.Format != "":
			t = "string, " + template.HTMLEscapeString(s.Format)
		default:
			t = template.HTMLEscapeString(t)
		}
		words = append(words, t)
	}
	return template.HTML(strings.Join(words, " or ")) //nolint:gosec // it is escaped
}

// indented returns JSON for people.
func indented(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return strings.TrimSpace(b.String()), err
}

// anchorOf is the anchor of a tag.
func anchorOf(tag string) string { return "tag-" + strings.ReplaceAll(tag, " ", "-") }

func statusText(status any) string {
	code, _ := strconv.Atoi(fmt.Sprint(status))
	return fmt.Sprintf("%d %s", code, http.StatusText(code))
}

// markdown renders the supported part of Markdown.
func markdown(text string) template.HTML {
	var b strings.Builder
	for block := range strings.SplitSeq(text, "\n\n") {
		block = strings.TrimSpace(block)
		switch {
		case block == "":
		case strings.HasPrefix(block, "- "):
			b.WriteString("<ul>")
			for item := range strings.SplitSeq(block[2:], "\n- ") {
				b.WriteString("<li>" + inline(item) + "</li>")
			}
			b.WriteString("</ul>")
		default:
			b.WriteString("<p>" + inline(block) + "</p>")
		}
	}
	return template.HTML(b.String()) //nolint:gosec // every text in it is escaped
}

// inline escapes a text and marks the parts between backticks as code.
func inline(text string) string {
	parts := strings.Split(text, "`")
	for i, part := range parts {
		parts[i] = template.HTMLEscapeString(part)
		switch {
		case i%2 == 0:
		case i == len(parts)-1:
			parts[i] = "`" + parts[i] // it is not closed
		default:
			parts[i] = "<code>" + parts[i] + "</code>"
		}
	}
	return strings.Join(parts, "")
}
