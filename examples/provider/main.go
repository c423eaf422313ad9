// Command provider is an example of a provider of extensions: it rents shelves, on which Apps store values by
// key.
//
// Each file shows one part of a provider: the calls from the platform
// (extensions.go), its own database (store.go), the service that customers reach over their private
// network (shelf.go), single sign-on (signon.go), a page for customers (page.go), webhooks
// to the platform (webhooks.go), and events of Machines (events.go).
//
// Environment variables configure it:
//
//	PORT            port for the platform and browsers (8080)
//	SHELF_PORT      port for Apps to reach their shelves, with the PROXY protocol (8081)
//	DATA            a directory for the database
//	BASE_URL        URL of this provider that the platform knows
//	REQUEST_SECRET  for requests of the platform; two, separated by a comma, during a rotation
//	WEBHOOK_URL     of the platform
//	WEBHOOK_SECRET  for webhooks
//	AUTH_URL        of the platform, for single sign-on
//	CLIENT_ID       for single sign-on
//	CLIENT_SECRET   for single sign-on
//	APP_NAME        its own App on the platform; if empty, shelves are at BASE_URL
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/hangar-platform/hangar/provider"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "provider:", err)
		os.Exit(1)
	}
}

// config is the configuration from the environment.
type config struct {
	baseURL        string
	requestSecrets []string
	webhookURL     string
	webhookSecret  string
	authURL        string
	clientID       string
	clientSecret   string
	appName        string
}

func readConfig() (config, error) {
	c := config{
		baseURL: strings.TrimRight(os.Getenv("BASE_URL"), "/"), requestSecrets: strings.Split(os.Getenv("REQUEST_SECRET"), ","),
		webhookURL: os.Getenv("WEBHOOK_URL"), webhookSecret: os.Getenv("WEBHOOK_SECRET"),
		authURL: strings.TrimRight(os.Getenv("AUTH_URL"), "/"), clientID: os.Getenv("CLIENT_ID"), clientSecret: os.Getenv("CLIENT_SECRET"),
		appName: os.Getenv("APP_NAME"),
	}
	for name, value := range map[string]string{"BASE_URL": c.baseURL, "REQUEST_SECRET": c.requestSecrets[0]} {
		if value == "" {
			return c, fmt.Errorf("%s is not set", name)
		}
	}
	return c, nil
}

// server has the state that the handlers share.
type server struct {
	config
	store    *store
	sessions *sessions
	log      *slog.Logger
}

// newServer returns the handlers for the platform and browsers, and for Apps.
func newServer(c config, s *store, log *slog.Logger) (front, shelves http.Handler, err error) {
	verifier, err := provider.NewVerifier(provider.VerifierConfig{
		BaseURL: c.baseURL, Secrets: c.requestSecrets,
		Refused: func(r *http.Request, e *provider.VerifyError) {
			log.Warn("request refused", "path", r.URL.Path, "error", e)
		},
	})
	if err != nil {
		return nil, nil, err
	}
	v := &server{config: c, store: s, sessions: newSessions(time.Now), log: log}
	platform := http.NewServeMux()
	platform.HandleFunc("POST /extensions", v.create)
	platform.HandleFunc("GET /extensions/{id}", v.get)
	platform.HandleFunc("PATCH /extensions/{id}", v.update)
	platform.HandleFunc("DELETE /extensions/{id}", v.remove)
	platform.HandleFunc("GET /extensions/{id}/sso", v.signOn)
	platform.HandleFunc("POST /extensions/events", v.receive)

	mux := http.NewServeMux()
	mux.Handle("/extensions", verifier.Handler(platform))
	mux.Handle("/extensions/", verifier.Handler(platform))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	mux.HandleFunc("GET /callback", v.callback)
	mux.HandleFunc("GET /dashboard/{id}", v.dashboard)
	mux.HandleFunc("POST /dashboard/{id}", v.change)
	mux.Handle("/shelf/", http.StripPrefix("/shelf", http.HandlerFunc(v.serveShelf)))
	return mux, http.HandlerFunc(v.serveShelf), nil
}

// run serves until SIGINT or SIGTERM.
func run() error {
	c, err := readConfig()
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stdout, nil))
	s, err := openStore(filepath.Join(os.Getenv("DATA"), "shelves.db"))
	if err != nil {
		return err
	}
	defer s.Close()
	front, shelves, err := newServer(c, s, log)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	plain, err := listen("PORT", "8080")
	if err != nil {
		return err
	}
	private, err := listen("SHELF_PORT", "8081")
	if err != nil {
		return errors.Join(err, plain.Close())
	}
	log.Info("serving", "platform", plain.Addr().String(), "shelves", private.Addr().String())
	var all sync.WaitGroup
	all.Go(func() { newSender(c, s, log).run(ctx) })
	for _, door := range []struct {
		handler  http.Handler
		listener net.Listener
	}{
		{front, plain},
		{shelves, &proxyproto.Listener{Listener: private, ReadHeaderTimeout: 5 * time.Second}},
	} {
		h := &http.Server{Handler: door.handler, ReadHeaderTimeout: 5 * time.Second, ConnContext: withAddress}
		all.Go(func() {
			if err := h.Serve(door.listener); !errors.Is(err, http.ErrServerClosed) {
				log.Error("serving failed", "error", err)
				stop()
			}
		})
		all.Go(func() {
			<-ctx.Done()
			_ = h.Close() // the platform repeats interrupted requests
		})
	}
	all.Wait()
	return nil
}

func listen(variable, port string) (net.Listener, error) {
	if p := os.Getenv(variable); p != "" {
		port = p
	}
	return net.Listen("tcp", ":"+port) //nolint:noctx // at once
}
