package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/parser"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/test/platform"
)

// schemaFile has what may be asked.
const schemaFile = "../../api/graphql/schema.graphql"

func readSchema(t *testing.T) *ast.Schema {
	t.Helper()
	text, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	schema, err := gqlparser.LoadSchema(&ast.Source{Name: schemaFile, Input: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

// TestEveryOperationHasAnExchange: each operation of the schema is among those that are replayed, with an answer
// without errors.
func TestEveryOperationHasAnExchange(t *testing.T) {
	t.Parallel()
	// It ends a session, and exchanges have tokens without a session: there, its refusal is
	// replayed.
	refused := map[string]bool{"logOut": true, "deleteOrganizationMembership": true, "latestImageDetails": true}
	replayed, answered := map[string]bool{}, map[string]bool{}
	files, err := filepath.Glob("testdata/graphql*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for i, f := range archive.Files[:len(archive.Files)-1] {
			_, body, _ := strings.Cut(string(f.Data), "\n\n")
			var request struct{ Query string }
			if !strings.HasPrefix(string(f.Data), "POST /graphql") || json.Unmarshal([]byte(body), &request) != nil {
				continue
			}
			doc, err := parser.ParseQuery(&ast.Source{Input: request.Query})
			if err != nil {
				continue // it shows how that is answered
			}
			for _, o := range doc.Operations {
				for _, s := range o.SelectionSet {
					if field, ok := s.(*ast.Field); ok {
						replayed[field.Name] = true
						answered[field.Name] = answered[field.Name] || !strings.Contains(string(archive.Files[i+1].Data), `"errors"`)
					}
				}
			}
		}
	}
	schema := readSchema(t)
	for _, root := range []*ast.Definition{schema.Query, schema.Mutation} {
		for _, f := range root.Fields {
			if strings.HasPrefix(f.Name, "__") {
				continue
			}
			if !replayed[f.Name] || answered[f.Name] == refused[f.Name] {
				t.Errorf("%s: replayed is %v, and answered without errors %v", f.Name, replayed[f.Name], answered[f.Name])
			}
		}
	}
}

// asker makes random requests of a schema.
type asker struct {
	*rand.Rand

	schema *ast.Schema
	words  []string // that texts are made of
	rude   bool     // now and then, what the schema does not allow
}

// request is a random query or, one time in four, a random mutation.
func (a *asker) request() map[string]any {
	kind, root := "query", a.schema.Query
	if a.IntN(4) == 0 {
		kind, root = "mutation", a.schema.Mutation
	}
	query := kind + " " + a.selection(root, 2+a.IntN(5))
	if a.rude && a.IntN(10) == 0 {
		at := a.IntN(len(query))
		query = query[:at] + string("{}()$@!:\"…x0"[a.IntN(12)]) + query[at:]
	}
	return map[string]any{"query": query}
}

func (a *asker) selection(of *ast.Definition, depth int) string {
	var b strings.Builder
	b.WriteString("{ ")
	if of.Kind == ast.Union || of.Kind == ast.Interface {
		b.WriteString("__typename ")
		for _, t := range a.schema.GetPossibleTypes(of) {
			fmt.Fprintf(&b, "... on %s %s ", t.Name, a.selection(t, depth))
		}
		return b.String() + "}"
	}
	for range 1 + a.IntN(5) {
		f := of.Fields[a.IntN(len(of.Fields))]
		if strings.HasPrefix(f.Name, "__") {
			continue
		}
		target := a.schema.Types[f.Type.Name()]
		if target.IsCompositeType() && depth == 0 {
			continue
		}
		fmt.Fprintf(&b, "a%d: %s%s ", a.IntN(1000), f.Name, a.arguments(f.Arguments))
		if target.IsCompositeType() {
			b.WriteString(a.selection(target, depth-1))
		}
	}
	if a.rude && a.IntN(20) == 0 {
		b.WriteString("future { more } ")
	}
	return b.String() + "__typename }"
}

func (a *asker) arguments(list ast.ArgumentDefinitionList) string {
	var given []string
	for _, arg := range list {
		if arg.Type.NonNull || a.IntN(3) == 0 {
			given = append(given, arg.Name+": "+a.value(arg.Type, 3))
		}
	}
	if a.rude && a.IntN(40) == 0 {
		given = append(given, "unknown: 1")
	}
	if len(given) == 0 {
		return ""
	}
	return "(" + strings.Join(given, ", ") + ")"
}

func (a *asker) value(t *ast.Type, depth int) string {
	switch {
	case a.rude && a.IntN(30) == 0:
		return []string{"null", "-1", "99999999999999999999", "1.5", "[[[]]]", "{}", "word", `"\u0000"`, "true"}[a.IntN(9)]
	case t.Elem != nil:
		return "[" + a.value(t.Elem, depth) + "]"
	}
	def := a.schema.Types[t.NamedType]
	switch def.Kind {
	case ast.Enum:
		return def.EnumValues[a.IntN(len(def.EnumValues))].Name
	case ast.InputObject:
		var fields []string
		for _, f := range def.Fields {
			if f.Type.NonNull || a.IntN(2) == 0 {
				fields = append(fields, f.Name+": "+a.value(f.Type, depth-1))
			}
		}
		return "{" + strings.Join(fields, ", ") + "}"
	}
	switch t.NamedType {
	case "Int":
		return fmt.Sprint(a.IntN(600))
	case "Boolean":
		return fmt.Sprint(a.IntN(2) == 0)
	case "JSON":
		return `{app_id: "web", list: [1, 2]}`
	default:
		quoted, _ := json.Marshal(a.words[a.IntN(len(a.words))])
		return string(quoted)
	}
}

// TestRandomGraphQL sends thousands of random requests, many of them wrong, to a platform that
// has some of everything. Each is answered with 200 and an answer that is JSON, and none with a
// fault of the platform; memory does not grow with them.
func TestRandomGraphQL(t *testing.T) {
	p := platform.Start(t, platform.Options{})
	c := p.Client()
	ctx := t.Context()
	if _, err := c.CreateApp(ctx, hangar.AppCreate{Name: "web", Org: hangar.OrgPersonal}); err != nil {
		t.Fatal(err)
	}
	m, err := c.CreateMachine(ctx, "web", hangar.MachineCreate{Config: hangar.MachineConfig{Image: "web"}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := c.CreateVolume(ctx, "web", hangar.VolumeCreate{Name: "data", SizeGB: 1})
	if err != nil {
		t.Fatal(err)
	}
	requests := 10_000
	if testing.Short() {
		requests = 500
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	a := &asker{
		Rand: rand.New(rand.NewPCG(seed, 1)), schema: readSchema(t), rude: true,
		words: []string{"web", "personal", "", string(m.ID), string(v.ID), "loc", "x", "deploy", "127.0.0.1", "www.example.com", "ünïcode", strings.Repeat("long", 100)},
	}
	answered := 0
	var before uint64
	for i := range requests {
		if i == requests/10 {
			before = heap()
		}
		body, err := json.Marshal(a.request())
		if err != nil {
			t.Fatal(err)
		}
		if checkAnswer(t, p, body) {
			answered++
		}
		if t.Failed() {
			return
		}
	}
	if after := heap(); after > before+64<<20 {
		t.Errorf("%d MiB are in use, and were %d before", after>>20, before>>20)
	}
	if answered < requests/20 {
		t.Errorf("only %d of %d requests had an answer without errors: the requests are of no use", answered, requests)
	}
}

// heap is how much memory is in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// maxAnswer bounds the answers to random requests, in bytes.
const maxAnswer = 8 << 20

// checkAnswer reports whether a request has an answer without errors.
func checkAnswer(t *testing.T, p *platform.Platform, body []byte) bool {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.URL()+"/graphql", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+p.Token())
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Data   json.RawMessage `json:"data"`
		Errors []struct {
			Message    string
			Path       []string
			Extensions struct{ Code string }
		} `json:"errors"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%s\nis answered %d with %d bytes: %.1000s", body, res.StatusCode, len(raw), raw)
		return false
	}
	for _, fault := range answer.Errors {
		if fault.Extensions.Code == "INTERNAL" || fault.Extensions.Code == "" {
			t.Errorf("%s\nis answered %+v", body, fault)
		}
	}
	return len(answer.Errors) == 0
}
