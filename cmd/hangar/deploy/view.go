package deploy

import (
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/cmd/hangar/cli"
	"github.com/hangar-platform/hangar/cmd/hangar/deploy/rollout"
)

// view shows a deploy: on a terminal, one line for each Machine, which is redrawn; otherwise one line for
// each event, or JSON.
type view struct {
	streams *cli.Streams
	asJSON  bool
	live    bool

	mu    sync.Mutex // guards the fields below: events come from several goroutines
	stage int
	rows  []row // the lines that are redrawn
}

// row is the line of a Machine.
type row struct {
	group, text string
	machine     hangar.MachineID
}

func newView(s *cli.Streams, asJSON bool) *view {
	return &view{streams: s, asJSON: asJSON, live: !asJSON && cli.IsTerminal(s.Stdout)}
}

// event shows an event.
func (v *view) event(e rollout.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.asJSON {
		_ = v.streams.PrintJSONLine(e) // the deploy continues, and its command fails at the end
		return
	}
	if e.Stage != v.stage && e.Stage > 0 {
		v.stage, v.rows = e.Stage, nil
		fmt.Fprintf(v.streams.Stdout, "Stage %d of %d\n", e.Stage, e.Stages)
	}
	text := e.Text
	switch {
	case e.Failed:
		text = "✗ " + text
	case e.Done:
		text = "✓ " + text
	}
	if !v.live || e.Machine == "" {
		v.rows = nil // the lines above are not redrawn any more
		fmt.Fprintln(v.streams.Stdout, line(row{e.Group, text, e.Machine}))
		return
	}
	redraw(v.streams.Stdout, &v.rows, row{e.Group, text, e.Machine})
}

// close ends the view.
func (v *view) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.rows = nil
}

// line formats a row.
func line(r row) string {
	var words []string
	if r.machine != "" {
		words = append(words, "  "+string(r.machine))
	}
	if r.group != "" {
		words = append(words, r.group+":")
	}
	return strings.Join(append(words, r.text), " ")
}

// redraw rewrites a line in place, or adds it below the others.
func redraw(out io.Writer, rows *[]row, r row) {
	for i, other := range *rows {
		if other.machine != r.machine {
			continue
		}
		(*rows)[i] = r
		up := len(*rows) - i
		fmt.Fprintf(out, "\x1b[%dA\r\x1b[2K%s\x1b[%dB\r", up, line(r), up)
		return
	}
	*rows = append(*rows, r)
	fmt.Fprintln(out, line(r))
}
