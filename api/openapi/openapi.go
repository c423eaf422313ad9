// Package openapi writes OpenAPI 3.1 documents and makes the schemas in them from
// Go types.
//
// A schema describes what encoding/json does with a type: the names of its properties,
// which of them are always present, which may be null. So a schema cannot lag behind
// the code that writes the JSON. What a type does in methods of its own cannot be seen
// from outside: its schema has to be given to Schemas, which refuses the type
// otherwise.
//
// It has just those parts of OpenAPI that hangar uses, and is no parser. A Schemas may
// be used by one goroutine at a time; a Document that does not change, by many.
package openapi

// Version is the version of OpenAPI that a Document is written in.
const Version = "3.1.0"

// Document is an API.
type Document struct {
	OpenAPI    string                           `json:"openapi"`
	Info       Info                             `json:"info"`
	Servers    []Server                         `json:"servers,omitempty"`
	Security   []map[string][]string            `json:"security,omitempty"`
	Tags       []Tag                            `json:"tags,omitempty"`
	Paths      map[string]map[string]*Operation `json:"paths"` // by path and lower-case method
	Components Components                       `json:"components"`
}

// Info is about an API as a whole. Texts are Markdown.
type Info struct {
	Title       string   `json:"title"`
	Version     string   `json:"version"`
	Summary     string   `json:"summary,omitempty"`
	Description string   `json:"description,omitempty"`
	License     *License `json:"license,omitempty"`
}

// License is the license of an API.
type License struct {
	Name       string `json:"name"`
	Identifier string `json:"identifier,omitempty"` // of SPDX
}

// Server is a place where an API is served. A URL that begins with a slash is relative to the place of
// the document.
type Server struct {
	URL         string `json:"url"`
	Description string `json:"description,omitempty"`
}

// Tag groups operations.
type Tag struct {
	Name        string `json:"name"`
	Description string `json:"description,omitempty"`
}

// Operation is a method of a path.
type Operation struct {
	ID          string                `json:"operationId"`
	Tags        []string              `json:"tags,omitempty"`
	Summary     string                `json:"summary"`
	Description string                `json:"description,omitempty"`
	Parameters  []Parameter           `json:"parameters,omitempty"`
	RequestBody *RequestBody          `json:"requestBody,omitempty"`
	Responses   map[string]*Response  `json:"responses"`          // by status code
	Security    []map[string][]string `json:"security,omitempty"` // empty: the document's; an empty entry: none is needed
	Samples     []Sample              `json:"x-codeSamples,omitempty"`
}

// Sample shows how to do the operation with a tool. Renderers of documents know the extension
// "x-codeSamples" (https://redocly.com/docs/realm/content/api-docs/openapi-extensions/x-code-samples).
type Sample struct {
	Lang   string `json:"lang"`  // "Shell"
	Label  string `json:"label"` // name of the tool
	Source string `json:"source"`
}

// Parameter is a part of a path or a query, or a header.
type Parameter struct {
	Name        string  `json:"name"`
	In          string  `json:"in"` // "path", "query" or "header"
	Description string  `json:"description,omitempty"`
	Required    bool    `json:"required,omitempty"`
	Style       string  `json:"style,omitempty"`
	Explode     *bool   `json:"explode,omitempty"`
	Schema      *Schema `json:"schema"`
	Example     any     `json:"example,omitempty"`
}

// RequestBody is the body of a request.
type RequestBody struct {
	Description string           `json:"description,omitempty"`
	Required    bool             `json:"required,omitempty"`
	Content     map[string]Media `json:"content"` // by media type
}

// Response is an answer, or a reference to a component that describes one.
type Response struct {
	Ref         string            `json:"$ref,omitempty"`
	Description string            `json:"description,omitempty"`
	Headers     map[string]Header `json:"headers,omitempty"`
	Content     map[string]Media  `json:"content,omitempty"` // by media type
}

// Header is a header of an answer, or a reference to a component that describes one.
type Header struct {
	Ref         string  `json:"$ref,omitempty"`
	Description string  `json:"description,omitempty"`
	Schema      *Schema `json:"schema,omitempty"`
}

// Media is a body of one media type.
type Media struct {
	Schema  *Schema `json:"schema,omitempty"`
	Example any     `json:"example,omitempty"`
}

// Components are what other parts refer to by name.
type Components struct {
	Schemas         map[string]*Schema         `json:"schemas,omitempty"`
	Responses       map[string]*Response       `json:"responses,omitempty"`
	Headers         map[string]Header          `json:"headers,omitempty"`
	SecuritySchemes map[string]*SecurityScheme `json:"securitySchemes,omitempty"`
}

// SecurityScheme is a way to authenticate the caller.
type SecurityScheme struct {
	Type        string `json:"type"`
	Scheme      string `json:"scheme,omitempty"`
	Description string `json:"description,omitempty"`
}

// Schema says what a JSON value looks like. The zero value allows every value.
type Schema struct {
	Ref                  string             `json:"$ref,omitempty"`
	Type                 []string           `json:"type,omitempty"` // one of them
	Format               string             `json:"format,omitempty"`
	Description          string             `json:"description,omitempty"`
	Enum                 []any              `json:"enum,omitempty"`
	Pattern              string             `json:"pattern,omitempty"`
	Minimum              *float64           `json:"minimum,omitempty"`
	Items                *Schema            `json:"items,omitempty"`
	Properties           map[string]*Schema `json:"properties,omitempty"`
	PatternProperties    map[string]*Schema `json:"patternProperties,omitempty"`
	Required             []string           `json:"required,omitempty"`
	AdditionalProperties any                `json:"additionalProperties,omitempty"` // nil, false or a *Schema
	AnyOf                []*Schema          `json:"anyOf,omitempty"`
	Examples             []any              `json:"examples,omitempty"`
}
