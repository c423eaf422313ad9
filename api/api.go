package api

import (
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/hangar-platform/hangar"
)

// The bounds of a request; see the package comment.
const (
	MaxBodyBytes  = 1 << 20
	maxHeader     = 64 << 10
	headerTimeout = 10 * time.Second
	bodyTimeout   = 30 * time.Second
	answerTimeout = time.Minute
	streamTimeout = 5 * time.Minute // for one write to a stream
	idleTimeout   = 2 * time.Minute
	heartbeat     = 15 * time.Second
)

// Config is what an API serves. Every field is required but Registry.
type Config struct {
	Apps     hangar.AppService
	Machines hangar.MachineService
	Logs     hangar.LogService
	Images   hangar.ImageService
	Auth     hangar.Authenticator
	// Registry is mounted at /v2/ and authenticates by itself. Nil: there is none.
	Registry http.Handler
	Region   hangar.Region
	Version  string
	Log      *slog.Logger
}

// server holds what handlers share. It is never changed after New.
type server struct {
	Config
	mux *http.ServeMux
}

// New returns the handler of the API. It does no I/O and starts nothing.
func New(config Config) http.Handler {
	s := &server{Config: config, mux: http.NewServeMux()}
	s.routes()
	return s.observe(s.mux)
}

// Server returns an http.Server for handler with the bounds that keep slow clients
// from holding connections. The caller serves and shuts it down.
func Server(handler http.Handler) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
	}
}

func (s *server) routes() {
	const machines = "/v1/apps/{app}/machines"
	const machine = machines + "/{machine}"

	s.handle("POST /v1/apps", s.createApp)
	s.handle("GET /v1/apps", s.listApps)
	s.handle("GET /v1/apps/{app}", s.getApp)
	s.handle("DELETE /v1/apps/{app}", s.destroyApp)

	s.handle("POST "+machines, s.createMachine)
	s.handle("GET "+machines, s.listMachines)
	s.handle("GET "+machine, s.getMachine)
	s.handle("POST "+machine, s.updateMachine)
	s.handle("DELETE "+machine, s.destroyMachine)
	s.handle("POST "+machine+"/start", s.startMachine)
	s.handle("POST "+machine+"/stop", s.stopMachine)
	s.handle("POST "+machine+"/suspend", s.suspendMachine)
	s.handle("POST "+machine+"/restart", s.restartMachine)
	s.handle("POST "+machine+"/signal", s.signalMachine)
	s.handle("GET "+machine+"/wait", s.waitMachine)
	s.handle("GET "+machine+"/versions", s.listVersions)
	s.handle("GET "+machine+"/ps", s.listProcesses)
	s.handle("GET "+machine+"/metadata", s.getMetadata)
	s.handle("GET "+machine+"/metadata/{key}", s.getMetadataKey)
	s.handle("POST "+machine+"/exec", s.execMachine)
	s.stream("GET "+machine+"/exec", s.execStream)
	s.stream("GET "+machine+"/events", s.listEvents)

	s.handle("GET /api/v1/apps/{app}/logs", s.pollLogs)
	s.stream("GET /v1/apps/{app}/logs", s.followLogs)

	s.handle("GET /v1/images", s.listImages)
	s.handle("DELETE /v1/images/{digest}", s.removeImage)
	s.handle("GET /v1/platform/regions", s.listRegions)

	s.mux.Handle("GET /healthz", s.plain(s.health))
	if s.Registry != nil {
		s.mux.Handle("/v2/", steady(s.Registry))
	}
	s.mux.Handle("/", s.plain(s.unknownPath))
}

// handler answers one request: with what shall be written, or with an error.
type handler func(r *http.Request) (answer, error)

// streamer writes its answer itself. An error that it returns before it has
// written anything is answered like any other.
type streamer func(w http.ResponseWriter, r *http.Request) error

// handle mounts h behind a token.
func (s *server) handle(pattern string, h handler) {
	s.mux.Handle(pattern, s.authenticate(s.plain(h)))
}

// stream mounts h behind a token.
func (s *server) stream(pattern string, h streamer) {
	s.mux.Handle(pattern, s.authenticate(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := h(w, r); err != nil {
			s.writeError(w, r, err)
		}
	})))
}

// plain bounds what is read and writes what h answers.
func (s *server) plain(h handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Body = http.MaxBytesReader(w, r.Body, MaxBodyBytes)
		a, err := h(r)
		maps.Copy(w.Header(), a.header)
		if err != nil {
			s.writeError(w, r, err)
			return
		}
		s.write(w, r, a)
	})
}
