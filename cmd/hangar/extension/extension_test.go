package extension

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar/cmd/hangar/cli"
)

// TestAFailedExtensionIsAFailure: in the exit status of both outputs.
func TestAFailedExtensionIsAFailure(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"app_name":"web","name":"logs","status":"error","error":"no room"}`)
	}))
	defer server.Close()
	for _, command := range []string{"create web logs", "update web logs --plan pro", "retry web logs"} {
		for _, form := range []string{"", " --json"} {
			var out, errs strings.Builder
			c := cli.New(cli.Streams{Stdout: &out, Stderr: &errs}, func(name string) string {
				return map[string]string{"HANGAR_URL": server.URL, "HANGAR_TOKEN": "x"}[name]
			})
			code := c.Run(t.Context(), NewExtensionsCommand(c), strings.Fields(command+form))
			if code != cli.ExitFailed || !strings.Contains(errs.String(), "extension logs: no room") || strings.Contains(out.String(), `"status": "error"`) != (form != "") {
				t.Errorf("%s%s: code %d\n%s%s", command, form, code, &out, &errs)
			}
		}
	}
}
