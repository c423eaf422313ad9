// Command call is the program by which rows of test/spec make requests from within
// Machines.
//
//	call METHOD URL [BODY]   print the status and the body of the answer
//
// The host "local" is the Machine's local socket. A server that refuses connections, or whose
// name is not known, may not be there yet, and is asked again for some seconds.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: call METHOD URL [BODY]")
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
