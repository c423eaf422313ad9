package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"

	"github.com/hangar-platform/hangar/internal/certfile"
	"github.com/hangar-platform/hangar/replica/config"
	"github.com/hangar-platform/hangar/replica/lease"
)

// newLease returns the lease of the configuration.
func newLease(c *config.Config, self lease.Peer, log *slog.Logger) (lease.Lease, error) {
	if c.Lease.Type != "etcd" {
		return lease.NewStatic(c.Candidate(), self), nil
	}
	_, client, err := nodeTLS(c.Lease.Etcd.TLS, log)
	if err != nil {
		return nil, err
	}
	return lease.NewEtcd(lease.EtcdConfig{
		Endpoints: c.Lease.Etcd.Endpoints, TLS: client, Username: c.Lease.Etcd.Username, Password: c.Lease.Etcd.Password,
		Prefix: c.Lease.Etcd.Prefix, Self: self, Candidate: c.Candidate(),
		TTL: c.Lease.Etcd.TTL, LockDelay: c.Lease.Etcd.LockDelay, Log: log,
	})
}

// nodeTLS returns the configurations of a server and of a client, nil where the files are not named.
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
