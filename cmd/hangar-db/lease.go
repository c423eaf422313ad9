package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/hangar-platform/hangar/internal/certfile"
	"github.com/hangar-platform/hangar/replica/config"
	"github.com/hangar-platform/hangar/replica/lease"
	"github.com/hangar-platform/hangar/replica/lease/etcd"
	"github.com/hangar-platform/hangar/replica/lease/platform"
)

// newLease returns the configured lease.
func newLease(c *config.Config, self lease.Peer, log *slog.Logger) (lease.Lease, error) {
	timing := c.Lease.Etcd.Timing
	var store lease.Store
	switch c.Lease.Type {
	case config.LeaseEtcd:
		_, client, err := nodeTLS(c.Lease.Etcd.TLS, log)
		if err != nil {
			return nil, err
		}
		store, err = etcd.New(etcd.Config{
			Endpoints: c.Lease.Etcd.Endpoints, TLS: client, Username: c.Lease.Etcd.Username, Password: c.Lease.Etcd.Password, Prefix: c.Lease.Etcd.Prefix,
		})
		if err != nil {
			return nil, err
		}
	case config.LeasePlatform:
		app, _, within := platform.Within(os.Getenv)
		if !within {
			return nil, errors.New("lease.type: platform works only in a Machine of the platform: use etcd or static")
		}
		var err error
		if store, err = platform.New(platform.Config{App: app, Name: c.Lease.Platform.Election}); err != nil {
			return nil, fmt.Errorf("lease.platform: %w", err)
		}
		timing = c.Lease.Platform.Timing
	default:
		return lease.NewStatic(c.Candidate(), self), nil
	}
	return lease.NewElected(lease.Config{
		Store: store, Self: self, Candidate: c.Candidate(), TTL: timing.TTL, LockDelay: timing.LockDelay, Log: log,
	}), nil
}

// nodeTLS returns the TLS configurations of a server and a client, nil for the defaults.
func nodeTLS(t config.TLS, log *slog.Logger) (server, client *tls.Config, err error) {
	if t == (config.TLS{}) {
		return nil, nil, nil
	}
	client = &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA != "" {
		pem, err := os.ReadFile(t.CA)
		if err != nil {
			return nil, nil, err
		}
		client.RootCAs = x509.NewCertPool()
		if !client.RootCAs.AppendCertsFromPEM(pem) {
			return nil, nil, fmt.Errorf("%s has no certificate", t.CA)
		}
	}
	if t.Cert == "" {
		return nil, client, nil
	}
	pair, err := certfile.Open(t.Cert, t.Key, log)
	if err != nil {
		return nil, nil, err
	}
	client.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return pair.Get(nil) }
	server = &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.Get}
	if client.RootCAs != nil {
		server.ClientCAs, server.ClientAuth = client.RootCAs, tls.VerifyClientCertIfGiven
	}
	return server, client, nil
}
