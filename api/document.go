package api

import (
	"net/http"

	"github.com/hangar-platform/hangar/api/election"
	"github.com/hangar-platform/hangar/api/host"
	"github.com/hangar-platform/hangar/api/openapi"
	"github.com/hangar-platform/hangar/api/openapi/reference"
	"github.com/hangar-platform/hangar/api/router"
	"github.com/hangar-platform/hangar/api/webhook"
)

const documentText = `The API of a hangar server. Every request carries a token: ` + "`Authorization: Bearer TOKEN`" + `.
Exceptions are this document, the keys that verify identity tokens, and the health of the server.

An error is a JSON object; its ` + "`code`" + ` and its ` + "`status`" + ` are stable, its text is for people.
Every answer has the id of its request in a header. The log of the server has more under this id.

Properties are added over time: ignore unknown ones.
The registry of images under ` + "`/v2/`" + ` is described by the OCI distribution specification and not here.`

// describe writes the document of every route.
func (s *server) describe() *openapi.Document {
	return s.Router.Document(&openapi.Document{
		Info: openapi.Info{
			Title: "hangar", Version: s.Version, Summary: "Machines behind a REST API", Description: documentText,
			License: &openapi.License{Name: "Apache-2.0", Identifier: "Apache-2.0"},
		},
		Servers: []openapi.Server{{URL: "/", Description: "The server that this document comes from."}},
		Tags:    tags,
	}, newSchemas())
}

// tags are the groups of operations, in the order in which they are shown.
var tags = []openapi.Tag{
	{Name: "Apps", Description: "An App is a named group of Machines with one owner and one private network."},
	{Name: "Machines", Description: "A Machine runs one image. Its config says how; every change of the config is a version."},
	{Name: "Execution", Description: "Commands, processes and signals inside a Machine that is started."},
	{Name: "Leases", Description: "A lease keeps others from changing a Machine for a while."},
	{Name: "Metadata", Description: "Texts by which users distinguish Machines. Changing them makes no new version."},
	{Name: "Volumes", Description: "A volume is storage that a Machine mounts, with its own file system on one server. A snapshot is its content at one moment, and outlives it."},
	{Name: "Secrets", Description: "Environment variables of the Machines of an App that are never shown."},
	{Name: "Addresses", Description: "The addresses at which the edge serves an App. An App without one cannot be reached from outside of its private network."},
	{Name: "Certificates", Description: "Custom hostnames of an App, and the certificates with which the edge serves them."},
	{Name: "Logs", Description: "What Machines print, and what the platform says about them."},
	{Name: "Metrics", Description: "Series of Apps and Machines, and what they expose themselves, in the HTTP API of Prometheus and the language MetricsQL."},
	{Name: "Alerts", Description: "Rules that watch the metrics of an organization, and receivers that are notified."},
	{Name: "Releases", Description: "What was deployed to an App, as recorded by deployers. A release changes no Machine."},
	{Name: "Images", Description: "The images that this server holds unpacked."},
	{Name: "Registries", Description: "How this server signs in at the registries that images are pulled from."},
	{Name: "Organizations", Description: "An organization owns Apps, networks, tokens and images. Others learn nothing of it but that it exists, from its issuer of identity tokens."},
	{Name: "Tokens", Description: "A token identifies the caller and says what it may do."},
	{Name: "Users", Description: "People who use the platform, and their roles in organizations. A user signs in for a token; what it allows follows the memberships."},
	{Name: "Identity", Description: "Tokens by which Machines prove to third parties who they are, and how those verify them."},
	{Name: "WireGuard", Description: "Computers that are on a private network of an organization through WireGuard."},
	{Name: webhook.Tag, Description: "Where an organization gets the events of its Machines, as CloudEvents, and how their delivery goes."},
	{Name: "Extensions", Description: "Databases and other things that third-party providers create for Apps, and these providers."},
	{Name: "Keys", Description: "Key material of an App that the platform stores and uses, but never shows, not even to Machines of the App."},
	{Name: election.Tag, Description: "Records by which the Machines of an App elect a leader. Nodes of replicated databases elect their primary with them."},
	{Name: host.Tag, Description: "The servers of the platform, and how others join them."},
	{Name: "Platform", Description: "The server itself."},
	{Name: router.TagExisting, Description: "What the command line and the libraries of the public platform use beside the operations above. New clients need none of it."},
}

// pathParams describes the names in the braces of patterns.
var pathParams = map[string]router.Param{
	"token":      {Name: "", Example: "4k7fbw2hxq3s", Text: "The id of a token, or its name."},
	"user":       {Name: "", Example: exampleUserID, Text: "The id of a user, or the e-mail address."},
	"invitation": {Name: "", Example: exampleInvitation, Text: "The id of an invitation."},
	"app":        {Name: "", Example: "web", Text: "The name of an App: at most 63 characters of a-z, 0-9 and dash."},
	"release":    {Name: "", Example: "w5yt2wl6j1qgakzn-12", Text: "The id of a release."},
	"provider":   {Name: "", Example: "logs", Text: "The name of a provider of extensions."},
	"extension":  {Name: "", Example: "web-logs", Text: "The name of an extension."},
	"org":        {Name: "", Example: "personal", Text: "The slug of an organization."},
	"label":      {Name: "", Example: "instance", Text: "The name of a label."},
	"machine":    {Name: "", Example: "d8912340000002", Text: "The id of a Machine: 14 lowercase hexadecimal digits."},
	"volume":     {Name: "", Example: string(exampleVolumeID), Text: "The id of a volume: `vol_` and 16 characters of a-z and 0-9."},
	"key":        {Name: "", Example: "role", Text: "A key of the metadata."},
	"secret":     {Name: "", Example: exampleSecret, Text: "The name of a secret."},
	"secretkey":  {Name: "", Example: exampleSecretKey, Text: "The name of a secret key: letters, digits, `_`, `-` and `.`, neither of the last two first."},
	"election":   {Name: "", Example: election.ExampleName, Text: "The name of an election of the App: 1 to 63 characters of a-z, 0-9 and dash."},
	"session":    {Name: "", Example: election.ExampleSession, Text: "The id of a session of the election."},
	"registry":   {Name: "", Example: exampleRegistry, Text: "The host of a registry, with its port if need be."},
	"hostname":   {Name: "", Example: string(exampleHostname), Text: "A DNS name, or `*.` and one."},
	"webhook":    {Name: "", Example: webhook.ExampleID, Text: "The id of a webhook."},
	"delivery":   {Name: "", Example: webhook.ExampleDelivery, Text: "The id of a delivery."},
	"host":       {Name: "", Example: host.ExampleID, Text: "The id of a host: 8 lowercase hexadecimal digits."},
	"jointoken":  {Name: "", Example: host.ExampleToken, Text: "The id of a token for joining."},
	"peer":       {Name: "", Example: examplePeer, Text: "The name of a WireGuard peer."},
	"ip":         {Name: "", Example: "203.0.113.7", Text: "An address of the App."},
	"digest":     {Name: "", Example: "sha256:83075afea33660ca1911ce1905dee384079ed856397e0e5a9249435b22c35dc8", Text: "The digest of an image."},
}

// getDocument answers with the document, which is made when it is first asked for.
func (s *server) getDocument(*http.Request) (router.Answer, error) { return router.OK(s.document()) }

// getReference answers with the document as a page for people.
func (s *server) getReference(*http.Request) (router.Answer, error) {
	html, err := s.reference()
	return router.Answer{Page: html, Policy: reference.Policy()}, err
}
