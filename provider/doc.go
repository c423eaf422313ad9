// Package provider signs, verifies and decodes the messages that hangar and the providers of its extensions send
// each other.
//
// A provider offers a service to the customers of a platform, such as databases or error tracking.
// The platform calls the provider's server to create, read, change and delete extensions; the
// provider reports changes to the platform with webhooks. Both directions are signed in the same way,
// each with its own secret. docs/extensions.md of this module specifies the protocol; this package
// implements both sides of it.
//
// A provider's server puts a [Verifier] in front of its handlers and decodes bodies into [Provision]
// and [MachineEvent]:
//
//	verifier, err := provider.NewVerifier(provider.VerifierConfig{
//		BaseURL: "https://logs.example.com",
//		Secrets: []string{secret},
//	})
//	…
//	mux := http.NewServeMux()
//	mux.HandleFunc("POST /extensions", create)             // reads Provision, answers Provisioned
//	mux.HandleFunc("GET /extensions/{id}", get)            // answers Resource
//	mux.HandleFunc("PATCH /extensions/{id}", update)       // reads Provision, answers Resource
//	mux.HandleFunc("DELETE /extensions/{id}", remove)
//	mux.HandleFunc("GET /extensions/{id}/sso", signIn)     // redirects the customer's browser
//	mux.HandleFunc("POST /extensions/events", receive)     // ReadMachineEvent
//	http.ListenAndServe(address, verifier.Handler(mux))
//
// It reports changes with a [WebhookClient], which has the other secret.
//
// Requests may arrive more than once: a sender that got an error or no answer
// repeats the request with a new nonce, which makes it a new request to a Verifier. Handlers must be
// idempotent for each id of an extension.
//
// A Verifier, a Signer and a WebhookClient are safe for concurrent use. They start no goroutines.
package provider
