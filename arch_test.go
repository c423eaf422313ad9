package hangar_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/hangar-platform/hangar"

// rule says what a folder may import of this module. An entry allows the folder itself. With "/..." it
// allows the folders below it, too. "" is the root.
type rule struct {
	imports []string
	tests   []string // beyond imports, in _test.go files
}

var (
	language   = []string{"", "internal/..."}
	planes     = plus(language, "api/...", "client/...", "cluster/...", "control/...", "host/...", "edge/...", "metrics/...", "provider", "replica/...")
	everything = plus(planes, "daemon", "test/...")
	edgeTests  = []string{"edge/edgetest"}
)

func plus(base []string, more ...string) []string { return slices.Concat(base, more) }

// rules is the map of the module: which folder may import which. Planes never import one another, nor
// do children of a plane. The daemon joins them, and only cmd, test and bench import the daemon. A
// folder without a rule fails, so that adding one is a decision.
var rules = map[string]rule{
	"":             {},
	"internal/...": {imports: language},

	"api":                 {imports: plus(language, "api/...")},
	"api/...":             {imports: plus(language, "api/openapi/...")},
	"api/input":           {imports: language},
	"api/longpoll":        {imports: language},
	"api/names":           {imports: plus(language, "api/signon")},
	"api/router":          {imports: plus(language, "api/input", "api/latency", "api/openapi", "api/view")},
	"api/graphql":         {imports: plus(language, "api/graphql/execute", "api/input", "api/router")},
	"api/graphql/execute": {imports: language},
	"api/release":         {imports: plus(language, "api/input", "api/openapi", "api/router")},
	"api/election":        {imports: plus(language, "api/input", "api/openapi", "api/router")},
	"api/host":            {imports: plus(language, "api/input", "api/openapi", "api/router")},
	"api/webhook":         {imports: plus(language, "api/input", "api/openapi", "api/router")},
	"api/view":            {imports: language},
	"client":              {imports: language},
	"api/extension":       {imports: plus(language, "api/input", "api/openapi", "api/router", "api/view")},
	"api/signon":          {imports: plus(language, "api/router", "api/signon/openid"), tests: []string{"client", "daemon", "test/platform"}},
	"api/signon/openid":   {imports: language},

	// The public side of extensions stands alone: third parties build their servers with it.
	"provider":       {},
	"provider/check": {imports: []string{"provider", "internal/finish"}},

	"control":                   {imports: plus(language, "control/..."), tests: []string{"test/contract"}},
	"control/auth":              {imports: plus(language, "control/state")},
	"control/oidc":              {imports: plus(language, "control/state")},
	"control/tenants":           {imports: plus(language, "control/state")},
	"control/ledger":            {imports: plus(language, "control/state", "control/tenants")},
	"control/fleet":             {imports: plus(language, "control/state", "control/tenants")},
	"control/users":             {imports: plus(language, "control/auth", "control/ledger", "control/state", "control/tenants")},
	"control/vault":             {imports: plus(language, "control/ledger", "control/oidc", "control/state", "control/tenants")},
	"control/alerts":            {imports: plus(language, "control/state", "control/tenants", "control/vault")},
	"control/webhooks":          {imports: plus(language, "control/state", "control/tenants", "control/vault", "provider")},
	"control/elections":         {imports: plus(language, "control/state", "control/tenants")},
	"control/releases":          {imports: plus(language, "control/state", "control/tenants")},
	"control/sshca":             {imports: plus(language, "control/state", "control/tenants", "control/vault")},
	"control/webhooks/delivery": {imports: plus(language, "provider")},
	"control/addresses":         {imports: plus(language, "control/ledger", "control/state", "control/tenants")},
	"control/hostnames":         {imports: plus(language, "control/addresses", "control/ledger", "control/state", "control/tenants", "control/vault")},
	"control/state":             {imports: language, tests: []string{"cluster/authority", "cluster/listener", "control/state/statetest"}},
	"control/state/statetest":   {imports: plus(language, "control/state")},
	"control/placement":         {imports: language},
	"control/pushed":            {imports: plus(language, "control/state"), tests: []string{"control/state/statetest"}},
	"control/providers":         {imports: plus(language, "control/state", "control/tenants", "control/vault")},
	"control/extensions": {
		imports: plus(language, "control/addresses", "control/extensions/call", "control/ledger", "control/providers", "control/state", "control/tenants",
			"control/users", "control/vault", "provider"),
		tests: []string{"control/auth", "control/extensions/extensionstest"},
	},
	"control/extensions/call":           {imports: plus(language, "provider")},
	"control/extensions/extensionstest": {imports: plus(language, "provider")},
	"control/oauth":                     {imports: plus(language, "control/auth", "control/state", "control/users")},

	"cluster/authority": {imports: language},
	"cluster/join":      {imports: plus(language, "cluster/authority"), tests: []string{"cluster/listener"}},
	"cluster/listener":  {imports: plus(language, "cluster/authority")},

	"host":                   {imports: plus(language, "host/...")},
	"host/admission":         {imports: language},
	"host/archive":           {imports: language},
	"host/check":             {imports: language},
	"host/gate":              {imports: language},
	"host/driver":            {imports: language},
	"host/driver/drivertest": {imports: plus(language, "host/driver")},
	"host/driver/fake":       {imports: plus(language, "host/driver"), tests: []string{"host/driver/drivertest"}},
	"host/driver/gvisor":     {imports: plus(language, "host/driver", "host/driver/gvisor/...", "host/guest/init"), tests: []string{"host/driver/drivertest"}},
	"host/driver/gvisor/...": {imports: plus(language, "host/driver", "host/driver/gvisor/...")},
	"host/guest":             {imports: plus(language, "host/guest/...")},
	"host/guest/...":         {imports: language},
	"host/image":             {imports: plus(language, "host/image/..."), tests: []string{"host/remote", "host/remote/remotetest"}},
	"host/image/...":         {imports: language},
	"host/journal":           {imports: language},
	"host/localapi":          {imports: language},
	"host/logs":              {imports: language},
	"host/machines": {
		imports: plus(language, "host/admission", "host/check", "host/driver", "host/gate", "host/guest", "host/image", "host/journal",
			"host/localapi", "host/logs", "host/network", "host/rootfs", "host/usage"),
		// They run Machines as a part of their agent, with volumes.
		tests: []string{"host", "host/archive", "host/driver/...", "host/volume", "host/volumes/..."},
	},
	"host/mesh":                {imports: plus(language, "host/network", "host/wireguard/link"), tests: []string{"host/wireguard", "host/wireguard/peertest"}},
	"host/network":             {imports: language},
	"host/volume":              {imports: plus(language, "host/volume/..."), tests: []string{"host/volume/..."}},
	"host/volume/...":          {imports: language},
	"host/volumes":             {imports: plus(language, "host/archive", "host/journal", "host/logs", "host/volume"), tests: []string{"host/volumes/volumestest"}},
	"host/volumes/volumestest": {imports: plus(language, "host/archive", "host/volume", "host/volumes")},
	"host/agenttest":           {imports: language},
	"host/remote":              {imports: language, tests: []string{"host", "host/..."}},
	"host/remote/remotetest":   {imports: language},
	"host/rootfs":              {imports: language},
	"host/sshd":                {imports: language},
	"host/usage":               {imports: language},
	"host/wireguard":           {imports: plus(language, "host/wireguard/link"), tests: []string{"host/network", "host/wireguard/peertest"}},
	"host/wireguard/...":       {imports: language},

	"edge":           {imports: plus(language, "edge/...")},
	"edge/balance":   {imports: plus(language, "edge/catalog", "edge/traffic"), tests: edgeTests},
	"edge/catalog":   {imports: language},
	"edge/certs":     {imports: language},
	"edge/dns":       {imports: plus(language, "edge/catalog"), tests: edgeTests},
	"edge/edgetest":  {imports: language},
	"edge/listen":    {imports: plus(language, "edge/balance", "edge/catalog", "edge/traffic"), tests: edgeTests},
	"edge/proxy":     {imports: plus(language, "edge/balance", "edge/catalog", "edge/listen", "edge/proxy/...", "edge/traffic"), tests: edgeTests},
	"edge/proxy/...": {imports: language},
	"edge/traffic":   {imports: language},

	"metrics":             {imports: language},
	"metrics/gateway":     {imports: plus(language, "metrics"), tests: []string{"metrics/metricstest", "metrics/remote", "metrics/store"}},
	"metrics/hosts":       {imports: plus(language, "metrics"), tests: []string{"cluster/authority", "cluster/listener", "metrics/gateway", "metrics/metricstest", "metrics/remote"}},
	"metrics/metricstest": {imports: plus(language, "metrics", "metrics/remote", "metrics/store")},
	"metrics/program":     {imports: language},
	"metrics/remote":      {imports: plus(language, "metrics"), tests: []string{"metrics/metricstest"}},
	"metrics/scrape":      {imports: plus(language, "metrics"), tests: []string{"metrics/metricstest"}},
	"metrics/store":       {imports: plus(language, "metrics"), tests: []string{"metrics/metricstest"}},
	"metrics/...":         {imports: plus(language, "metrics")},
	"metrics/alerts":      {imports: plus(language, "metrics", "metrics/alerts/...")},
	"metrics/alerts/...":  {imports: language},

	"replica":           {imports: plus(language, "replica/...")},
	"replica/backup":    {imports: plus(language, "replica/database", "replica/measure", "replica/sqlite", "replica/txlog")},
	"replica/config":    {imports: language},
	"replica/database":  {imports: plus(language, "replica/locks", "replica/sqlite", "replica/txlog")},
	"replica/events":    {imports: plus(language, "replica/database", "replica/txlog")},
	"replica/lease":     {imports: language, tests: []string{"replica/lease/etcd"}},
	"replica/lease/...": {imports: plus(language, "replica/lease"), tests: []string{"replica/lease/leasetest"}},
	"replica/locks":     {imports: language},
	"replica/measure":   {imports: language},
	"replica/mount":     {imports: plus(language, "replica/database", "replica/locks", "replica/sqlite")},
	"replica/program":   {imports: language},
	"replica/proxy":     {imports: language},
	"replica/sqlite":    {imports: language},
	"replica/stream":    {imports: plus(language, "replica/database", "replica/txlog")},
	"replica/tail":      {imports: plus(language, "replica/database", "replica/locks", "replica/sqlite")},
	"replica/txlog":     {imports: language, tests: []string{"replica/sqlite"}},

	// Packages of commands do not import each other: what they share is in cmd/hangar/cli.
	"cmd/hangar":     {imports: plus(language, "cmd/hangar/..."), tests: everything},
	"cmd/hangar/...": {imports: plus(language, "client", "cmd/hangar/cli/..."), tests: []string{"api", "daemon", "test/platform"}},
	"cmd/hangar/cli": {imports: plus(language, "client")},
	"cmd/hangar/deploy": {
		imports: plus(language, "client", "cmd/hangar/cli/...", "cmd/hangar/deploy/..."), tests: []string{"test/platform"},
	},
	"cmd/hangar/deploy/appconfig": {imports: language},
	"cmd/hangar/deploy/build":     {imports: plus(language, "client", "cmd/hangar/cli"), tests: []string{"test/platform"}},
	"cmd/hangar/deploy/plan":      {imports: language},
	"cmd/hangar/deploy/rollout": {
		imports: plus(language, "client", "cmd/hangar/cli", "cmd/hangar/deploy/appconfig", "cmd/hangar/deploy/plan"), tests: []string{"test/platform"},
	},
	"cmd/hangar/machine":            {imports: plus(language, "client", "cmd/hangar/cli/...", "cmd/hangar/machine/...")},
	"cmd/hangar/machine/files":      {imports: plus(language, "cmd/hangar/cli")},
	"cmd/hangar/metric":             {imports: plus(language, "client", "cmd/hangar/cli", "cmd/hangar/metric/..."), tests: []string{"api"}},
	"cmd/hangar/metric/...":         {imports: language},
	"cmd/hangar/network":            {imports: plus(language, "client", "cmd/hangar/cli/...", "edge/certs")},
	"cmd/hangar/platform":           {imports: plus(language, "client", "cmd/hangar/cli", "cmd/hangar/platform/...", "daemon", "host/volume")},
	"cmd/hangar/platform/hostcheck": {imports: language},
	"cmd/hangar/provider":           {imports: plus(language, "cmd/hangar/cli", "provider/check")},

	"daemon":            {imports: planes, tests: []string{"test/..."}},
	"cmd/...":           {imports: plus(everything, "cmd/hangar-sandbox/early")},
	"test/...":          {imports: plus(everything, "cmd/...")},
	"dashboards":        {tests: []string{"metrics", "metrics/builtin", "metrics/gateway", "metrics/metricstest"}},
	"bench/...":         {imports: plus(everything, "bench/harness", "bench/publish")},
	"examples/...":      {},
	"examples/provider": {imports: []string{"provider"}, tests: []string{"provider/check"}},
}

// confined maps packages, with those below them, to the only folders that may import them: any other
// program that links them would pay for them in each of its processes.
var confined = map[string][]string{
	"github.com/VictoriaMetrics/VictoriaMetrics": {"metrics/victoria"},
	module + "/metrics/victoria":                 {"cmd/hangar-metrics"},
}

func TestHeavyPackagesAreConfined(t *testing.T) {
	for folder, files := range goFiles(t) {
		for name, f := range files {
			for _, spec := range f.Imports {
				target, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				for heavy, allowed := range confined {
					if covers(heavy+"/...", target) && !slices.Contains(allowed, folder) {
						t.Errorf("%s imports %s, which only %v may", name, target, allowed)
					}
				}
			}
		}
	}
}

// forbiddenWords say nothing about the content of a package.
var forbiddenWords = []string{"util", "utils", "common", "base", "helper", "helpers", "manager", "models", "impl", "types", "service"}

// goFiles parses the imports and comments of every Go file of the module, by folder. It reads the files
// itself, so that the test cache sees the dependency.
func goFiles(t *testing.T) map[string]map[string]*ast.File {
	t.Helper()
	found := map[string]map[string]*ast.File{}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name != "." && (strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		if path.Ext(name) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly|parser.ParseComments)
		if err != nil {
			return err
		}
		folder := strings.TrimPrefix(filepath.ToSlash(filepath.Dir(name)), ".")
		if found[folder] == nil {
			found[folder] = map[string]*ast.File{}
		}
		found[folder][name] = f
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// covers reports whether a pattern of the rules matches a folder.
func covers(pattern, folder string) bool {
	if parent, ok := strings.CutSuffix(pattern, "/..."); ok {
		return folder == parent || strings.HasPrefix(folder, parent+"/")
	}
	return pattern == folder
}

// ruleOf returns the rule of a folder: its own, or that of the nearest parent with rules for its
// children.
func ruleOf(folder string) (string, rule, bool) {
	if r, ok := rules[folder]; ok {
		return folder, r, true
	}
	for parent := folder; parent != "."; parent = path.Dir(parent) {
		if r, ok := rules[parent+"/..."]; ok {
			return parent + "/...", r, true
		}
	}
	return "", rule{}, false
}

func TestFoldersImportOnlyWhatTheyMay(t *testing.T) {
	used := map[string]bool{}
	for folder, files := range goFiles(t) {
		name, r, ok := ruleOf(folder)
		if !ok {
			t.Errorf("folder %s has no rule in arch_test.go: say what it may import", folder)
			continue
		}
		used[name] = true
		for name, f := range files {
			allowed := r.imports
			if strings.HasSuffix(name, "_test.go") {
				allowed = plus(r.imports, append(r.tests, folder)...)
			}
			for _, spec := range f.Imports {
				target, err := strconv.Unquote(spec.Path.Value)
				if err != nil {
					t.Fatal(err)
				}
				of, ours := strings.CutPrefix(target, module)
				if !ours || of != "" && of[0] != '/' {
					continue
				}
				of = strings.TrimPrefix(of, "/")
				if !slices.ContainsFunc(allowed, func(p string) bool { return covers(p, of) }) {
					t.Errorf("%s imports %s, which %q may not", name, target, folder)
				}
			}
		}
	}
	for name := range rules {
		// A parent's rule may be for future children.
		if !used[name] && !strings.HasSuffix(name, "/...") {
			t.Errorf("arch_test.go has a rule for %q, which does not exist", name)
		}
	}
}

func TestPackageNamesSayWhatIsInside(t *testing.T) {
	for folder, files := range goFiles(t) {
		for name, f := range files {
			words := append(strings.Split(folder, "/"), strings.TrimSuffix(f.Name.Name, "_test"))
			for _, w := range words {
				if slices.Contains(forbiddenWords, w) {
					t.Errorf("%s: %q says nothing about what is inside", name, w)
				}
			}
		}
	}
}

// maxLines is where a file has to be split.
const maxLines = 800

// linesOf returns the number of lines of each file of a package, without tests and generated files.
func linesOf(t *testing.T, files map[string]*ast.File) map[string]int {
	t.Helper()
	lines := map[string]int{}
	for name, f := range files {
		if strings.HasSuffix(name, "_test.go") || ast.IsGenerated(f) {
			continue
		}
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		lines[name] = strings.Count(string(b), "\n")
	}
	return lines
}

func TestNoFileIsTooLong(t *testing.T) {
	for _, files := range goFiles(t) {
		for name, n := range linesOf(t, files) {
			if n > maxLines {
				t.Errorf("%s has %d lines, more than %d", name, n, maxLines)
			}
		}
	}
}

// maxPackageLines is where a package has to be split. Tests do not count. Neither does the root: it is
// the vocabulary of the specification, which every plane would import as a whole.
const maxPackageLines = 7500

func TestNoPackageIsTooLarge(t *testing.T) {
	for folder, files := range goFiles(t) {
		if folder == "" {
			continue
		}
		total := 0
		for _, n := range linesOf(t, files) {
			total += n
		}
		if total > maxPackageLines {
			t.Errorf("package %q has %d lines, more than %d", folder, total, maxPackageLines)
		}
	}
}

// maxMethods is where a type has to be split. Methods of embedded types do not count.
const maxMethods = 60

// manyMethods are the types whose methods list what the API offers.
var manyMethods = map[string]string{
	"api":    "server", // a handler of each operation
	"client": "Client", // a call of each operation
}

func TestNoTypeHasTooManyMethods(t *testing.T) {
	used := map[string]bool{}
	for folder, files := range goFiles(t) {
		for name, methods := range methodsOf(t, files) {
			if manyMethods[folder] == name {
				used[folder] = true
				continue
			}
			if len(methods) > maxMethods {
				t.Errorf("type %s of package %q has %d methods, more than %d", name, folder, len(methods), maxMethods)
			}
		}
	}
	for folder, name := range manyMethods {
		if !used[folder] {
			t.Errorf("type %s of package %q does not exist", name, folder)
		}
	}
}

// methodsOf returns the names of the methods of all types of a package, without its tests.
func methodsOf(t *testing.T, files map[string]*ast.File) map[string]map[string]struct{} {
	t.Helper()
	methods := map[string]map[string]struct{}{}
	for name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range f.Decls {
			d, ok := decl.(*ast.FuncDecl)
			if !ok || d.Recv == nil {
				continue
			}
			of := receiver(d.Recv.List[0].Type)
			if methods[of] == nil {
				methods[of] = map[string]struct{}{}
			}
			methods[of][d.Name.Name] = struct{}{}
		}
	}
	return methods
}

// receiver is the name of the type of a receiver, without its pointer and parameters.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	default:
		return ""
	}
}
