package provider_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"time"

	"github.com/hangar-platform/hangar/provider"
)

// A provider's server verifies requests before its handlers see them.
func ExampleVerifier_Handler() {
	verifier, err := provider.NewVerifier(provider.VerifierConfig{
		BaseURL: "https://logs.example.com",
		Secrets: []string{"shared secret"},
		Now:     func() time.Time { return time.Unix(1685641160, 0) }, // only here
	})
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /extensions", func(w http.ResponseWriter, r *http.Request) {
		var p provider.Provision
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil || p.ID == "" {
			http.Error(w, "no provision", http.StatusBadRequest)
			return
		}
		json.NewEncoder(w).Encode(provider.Provisioned{
			ID:     "7", // always the same for the same p.ID
			Config: map[string]string{"LOGS_URL": "https://7:password@in.logs.example.com"},
		})
	})
	server := verifier.Handler(mux)

	// What the platform sends:
	body := `{"name":"shop-logs","id":"ext_1","url":"https://logs.example.com/extensions","nonce":"e3f7b4c8f5ea016d0d2e92048ca0d856","timestamp":1685641159}`
	r := httptest.NewRequest(http.MethodPost, "/extensions", strings.NewReader(body))
	r.Header.Set("X-Signature", "d63ca1aab0cee60b31dbecfdcd2a5dbc25448cbe9616c0d36296e38f29e974c9")
	w := httptest.NewRecorder()
	server.ServeHTTP(w, r)
	fmt.Print(w.Code, " ", w.Body)

	// A request that was recorded is refused:
	r.Body = io.NopCloser(strings.NewReader(body))
	w = httptest.NewRecorder()
	server.ServeHTTP(w, r)
	fmt.Print(w.Code, " ", w.Body)
	// Output:
	// 200 {"id":"7","config":{"LOGS_URL":"https://7:password@in.logs.example.com"}}
	// 401 {"error":"nonce"}
}

func ExampleSignature() {
	fmt.Println(provider.Signature("Jefe", []byte("what do ya want for nothing?")))
	// Output: 5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843
}

// The platform asks a provider for an extension.
func ExampleSigner_Sign() {
	signer := provider.Signer{
		Secret: "shared secret",
		Now:    func() time.Time { return time.Unix(1685641159, 0) }, // only here
		Nonce:  func() string { return "e3f7b4c8f5ea016d0d2e92048ca0d856" },
	}
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, "https://logs.example.com/extensions/7?detail=usage", nil)
	if err != nil {
		panic(err)
	}
	if err := signer.Sign(r); err != nil {
		panic(err)
	}
	fmt.Println(r.URL)
	fmt.Println(r.Header.Get("X-Signature"))
	// Output:
	// https://logs.example.com/extensions/7?detail=usage&nonce=e3f7b4c8f5ea016d0d2e92048ca0d856&timestamp=1685641159&url=https%3A%2F%2Flogs.example.com%2Fextensions%2F7%3Fdetail%3Dusage
	// 1a13d6b893d96cff3f6ba6fd8487c11c101b01da1096539cb3b8e59e9da8c01e
}

// The platform sends a customer's browser to the provider.
func ExampleSigner_SignLink() {
	link, err := provider.Signer{Secret: "shared secret"}.SignLink(&url.URL{
		Scheme: "https", Host: "logs.example.com", Path: "/extensions/7/sso",
	})
	if err != nil {
		panic(err)
	}
	fmt.Println(len(link.Query().Get("nonce")), link.Query().Get("url"))
	// Output: 32 https://logs.example.com/extensions/7/sso
}

// A provider tells the platform that an extension has another plan.
func ExampleWebhookClient_Send() {
	platform := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var e provider.Event
		json.NewDecoder(r.Body).Decode(&e)
		fmt.Println(e.Action, e.Resource.ID, e.Resource.Plan)
	}))
	defer platform.Close()

	client := provider.WebhookClient{URL: platform.URL, Signer: provider.Signer{Secret: "secret for webhooks"}}
	err := client.Send(context.Background(), provider.Event{
		Action:   provider.ResourceUpdated,
		Resource: provider.Resource{ID: "7", Plan: "pro", Status: provider.StatusReady},
	})
	fmt.Println(err)
	// Output:
	// resource.updated 7 pro
	// <nil>
}

// A provider whose service runs on the platform learns what happens to its Machines.
func ExampleReadMachineEvent() {
	body := `{"machine_id":"5683977ad31768","status":"failed","data":{"Error":"image not found"}}`
	r := httptest.NewRequest(http.MethodPost, "/extensions/events", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Ce-Specversion", "1.0")
	r.Header.Set("Ce-Id", "01JABCDEFGHJKMNPQRSTVWXYZ0")
	r.Header.Set("Ce-Source", "/hosts/ams-1")
	r.Header.Set("Ce-Type", "io.platform.machine.launch")
	r.Header.Set("Ce-Time", "2026-08-14T12:00:00Z")

	e, err := provider.ReadMachineEvent(r) // in a handler behind a Verifier
	if err != nil {
		panic(err)
	}
	fmt.Println(e.Time, e.MachineID, e.Name(), e.Status, string(e.Data))
	// Output: 2026-08-14 12:00:00 +0000 UTC 5683977ad31768 launch failed {"Error":"image not found"}
}
