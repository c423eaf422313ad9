// Command call is the program by which rows of test/spec make requests from within
// Machines.
//
//	call METHOD URL [BODY]   print the status and the body of the answer
//	call serve               answer with the version of HTTP: at port 8080 without TLS, at 8443 with
//	                         a self-signed certificate
//
// The host "local" is the Machine's local socket. A server that refuses connections, or whose
// name is not known, may not be there yet, and is asked again for some seconds.
package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) == 2 && os.Args[1] == "serve" {
		log.Fatal(serve())
	}
	if len(os.Args) < 3 {
		log.Fatal("usage: call METHOD URL [BODY], or call serve")
	}
	dialer := net.Dialer{Timeout: 10 * time.Second}
	client := http.Client{Timeout: 25 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == "local:80" {
				return dialer.DialContext(ctx, "unix", "/.platform/api")
			}
			return dialer.DialContext(ctx, network, address)
		},
	}}
	for end := time.Now().Add(10 * time.Second); ; <-time.After(20 * time.Millisecond) {
		err := call(&client, os.Args[1], os.Args[2], strings.Join(os.Args[3:], " "))
		if err == nil {
			return
		}
		var name *net.DNSError
		early := errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &name) && name.IsNotFound
		if !early || time.Now().After(end) {
			log.Fatal(err)
		}
	}
}

func serve() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"machine.example"}, NotAfter: time.Now().Add(24 * time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	server := http.Server{
		Protocols: &protocols,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{cert}, PrivateKey: key}}},
		Handler:   http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Proto) }),
	}
	failed := make(chan error, 2)
	for addr, listen := range map[string]func(net.Listener) error{
		":8080": server.Serve,
		":8443": func(l net.Listener) error { return server.ServeTLS(l, "", "") },
	} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		go func() { failed <- listen(l) }()
	}
	return <-failed
}

func call(client *http.Client, method, url, body string) error {
	req, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		return err
	}
	fmt.Printf("%d %s", res.StatusCode, answer)
	return nil
}
