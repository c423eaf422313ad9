package proxy

import (
	"context"
	"errors"
	"net/http"
	"sync"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/edge/catalog"
	"github.com/hangar-platform/hangar/edge/proxy/compress"
	"github.com/hangar-platform/hangar/edge/proxy/statics"
)

// shelves cache the static file rules of Apps, as long as no row of theirs changes.
type shelves struct{ all sync.Map } // of hangar.AppID to *shelf

type shelf struct {
	version uint64 // of the rows
	rules   []hangar.Static
}

// rules returns the rules of an App's newest Machine.
func (s *shelves) rules(c *catalog.Catalog, route *hangar.AppRoute) []hangar.Static {
	view := c.App(route.ID)
	if view.Version == 0 {
		return nil
	}
	if kept, ok := s.all.Load(route.ID); ok && kept.(*shelf).version == view.Version {
		return kept.(*shelf).rules
	}
	next := &shelf{version: view.Version}
	var newest hangar.InstanceID
	for _, row := range view.Rows {
		m := &row.Machine
		if m.InstanceID >= newest && len(m.Config.Services) > 0 && !m.Cordoned && m.State != hangar.MachineDestroyed {
			newest, next.rules = m.InstanceID, m.Config.Statics
		}
	}
	s.all.Store(route.ID, next)
	return next.rules
}

// sweep removes entries of Apps that are gone.
func (s *shelves) sweep(exists func(hangar.AppID) bool) {
	s.all.Range(func(app, _ any) bool {
		if !exists(app.(hangar.AppID)) {
			s.all.Delete(app)
		}
		return true
	})
}

// statics answers a request for a file that the App has the edge serve. It returns false,
// and nothing has been written, if the request is for the App itself.
func (x *exchange) statics() bool {
	if !statics.Offered(x.sent.Method) || x.upgrade != "" || x.p.options.Catalog == nil {
		return false
	}
	rule, rest, ok := statics.Match(x.p.shelves.rules(x.p.options.Catalog, x.route), x.sent.URL.EscapedPath())
	if !ok {
		return false
	}
	w := &edgeAnswer{ResponseWriter: x.w, x: x}
	var to http.ResponseWriter = w
	closing := func() error { return nil }
	if o := x.ep.Options.HTTP; o != nil && o.Compress != nil && *o.Compress {
		to, closing = compress.Writer(to, x.sent)
	}
	var err error
	if rule.TigrisBucket != "" {
		if x.p.options.Buckets == nil {
			return false
		}
		err = x.p.options.Buckets.Serve(to, x.sent, rule, rest)
	} else {
		err = x.machineFile(to)
	}
	if err == nil {
		err = closing()
	}
	var e *hangar.EdgeError
	switch {
	case errors.Is(err, statics.ErrNoFile):
		clear(x.w.Header())
		return false
	case err != nil && x.status != 0:
		panic(http.ErrAbortHandler) // so that the client does not take a partial body for complete
	case errors.As(err, &e):
		x.fail(e)
	case err != nil:
		x.fail(&hangar.EdgeError{Code: hangar.EdgeStatics, Status: http.StatusBadGateway, Message: "the file could not be read", Err: err})
	}
	return true
}

// machineFile answers with a file of a Machine. Meanwhile the request counts as in flight there.
func (x *exchange) machineFile(w http.ResponseWriter) error {
	ctx := x.sent.Context()
	permit, err := x.p.balancer.Acquire(ctx, x.ep, x.clientSelector)
	if err != nil {
		return edgeError(ctx, err)
	}
	defer permit.Release()
	m := &permit.Row.Machine
	rule, rest, ok := statics.Match(m.Config.Statics, x.sent.URL.EscapedPath())
	if !ok || rule.TigrisBucket != "" {
		return statics.ErrNoFile // it runs another version
	}
	gate, err := x.p.options.Gates.Gate(m.Host)
	if err != nil {
		return err
	}
	x.machine, x.host = m.Ref(), m.Host
	return statics.Serve(w, x.sent, func(ctx context.Context, path string) (hangar.MachineFile, error) {
		return gate.OpenMachineFile(ctx, m.Ref(), path)
	}, rule, rest)
}

// edgeAnswer adds the edge's headers to an answer that does not come from a Machine.
type edgeAnswer struct {
	http.ResponseWriter
	x *exchange
}

// Unwrap lets http.ResponseController through.
func (w *edgeAnswer) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *edgeAnswer) WriteHeader(status int) {
	if w.x.status == 0 && status >= 200 {
		w.x.answered(status)
		w.x.setEdgeHeaders(w.Header(), nil)
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *edgeAnswer) Write(p []byte) (int, error) {
	if w.x.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	n, err := w.ResponseWriter.Write(p)
	w.x.bytes += int64(n)
	return n, err
}
