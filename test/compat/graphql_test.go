package compat_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/hangar-platform/hangar/test/daemon"
)

// graphFault is an error of a GraphQL answer with the types that existing clients give it: a number in
// the path would keep them from reading any error.
type graphFault struct {
	Message    string
	Path       []string
	Extensions struct{ Code string }
}

// Error is the text by which existing clients tell errors apart.
func (f *graphFault) Error() string { return f.Message }

var blanks = regexp.MustCompile(`\s+`)

// graph asks as existing clients do: without an operation name, blanks made one, and any error an error.
func (c *client) graph(ctx context.Context, query string, variables map[string]any, out any) error {
	var answer struct {
		Data   json.RawMessage
		Errors []graphFault
	}
	in := map[string]any{"query": blanks.ReplaceAllString(strings.TrimSpace(query), " "), "variables": variables}
	if err := c.call(ctx, http.MethodPost, "/graphql", in, &answer); err != nil {
		return err
	}
	if len(answer.Errors) > 0 {
		return &answer.Errors[0]
	}
	if err := json.Unmarshal(answer.Data, out); err != nil {
		return fmt.Errorf("decode %s: %w", answer.Data, err)
	}
	return nil
}

// The types that existing clients decode. A time that is null or missing is the zero time, and a
// text is never null where it has to be there.
type (
	graphOrg struct {
		ID                string
		InternalNumericID string
		Slug, RawSlug     string
		Name              string
		Type              string
		PaidPlan          bool
		Billable          bool
		ViewerRole        string
	}
	graphUser    struct{ ID, Name, Email string }
	graphRelease struct {
		ID           string
		Version      int
		Stable       bool
		InProgress   bool
		Reason       string
		Description  string
		Status       string
		User         graphUser
		EvaluationID string
		CreatedAt    time.Time
		ImageRef     string
	}
	graphAddress struct {
		ID, Address, Type, Region, ServiceName string
		CreatedAt                              time.Time
		Network                                *struct {
			Name         string
			Organization *struct{ Slug string }
		}
	}
	graphToken struct {
		ID, Name  string
		Token     string
		ExpiresAt time.Time
		RevokedAt *time.Time
		User      graphUser
	}
	graphApp struct {
		ID                string
		InternalNumericID int32
		Name              string
		Status            string
		Deployed          bool
		Hostname          string
		AppURL            string
		Version           int
		Network           string
		PlatformVersion   string
		Organization      graphOrg
		PostgresAppRole   *struct{ Name string }
		CurrentRelease    *graphRelease
		Releases          struct{ Nodes []graphRelease }
		Config            struct{ Definition map[string]any }
		IPAddresses       struct{ Nodes []graphAddress }
		SharedIPAddress   string
		EgressIPAddresses struct {
			Nodes []struct {
				ID, IP    string
				Version   int
				Region    string
				UpdatedAt time.Time
			}
		}
		LimitedAccessTokens *struct{ Nodes []graphToken }
		Image               *struct {
			ID, Digest, Ref string
			CompressedSize  uint64 `json:",string"`
		}
		Services []struct {
			Description, Protocol string
			InternalPort          int
			Ports                 []struct {
				Port     int
				Handlers []string
			}
		}
		ImageDetails struct{ Registry, Repository, Tag, Version, Digest string }
		Machines     struct {
			Nodes []struct {
				ID, Name, State, Region string
				Config                  map[string]any
				CreatedAt               time.Time
				App                     struct{ Name string }
				IPs                     struct {
					Nodes []struct {
						Family, Kind, IP string
						MaskSize         int
					}
				}
				Host struct{ ID string }
			}
		}
		CurrentReleaseUnprocessed *struct {
			ID, ImageRef     string
			Version          int
			ConfigDefinition map[string]any
		}
	}
)

// ask asks for one thing.
func ask[T any](t *testing.T, c *client, query string, variables map[string]any) T {
	t.Helper()
	var out T
	if err := c.graph(t.Context(), query, variables, &out); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return out
}

// TestGraphQLClient goes through the commands of the public platform's command line that ask by GraphQL,
// with their questions in their order.
func TestGraphQLClient(t *testing.T) {
	d := daemon.Start(t, daemon.Options{Driver: "fake"})
	g := graphWorld{newClient(t, d, d.Token()), d, d.Push(daemon.Busybox(t, "sh", "sleep"), "web:1", "--cmd", "sleep", "--cmd", "100000")}
	for _, step := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"whoami and orgs", g.orgs},
		{"launch and create", g.create},
		{"deploy", g.deploy},
		{"status", g.status},
		{"redeploy", g.redeploy},
		{"ips", g.ips},
		{"without an App", g.withoutApp},
		{"tokens", g.tokens},
		{"wireguard and ssh", g.peers},
		{"refused", g.refused},
		{"destroy", g.destroy},
	} {
		if !t.Run(step.name, step.run) {
			return
		}
	}
}

type graphWorld struct {
	*client

	daemon *daemon.Daemon
	image  string
}

func (g graphWorld) orgs(t *testing.T) {
	who := ask[struct {
		Viewer struct {
			ID, Email       string
			EnablePaidHobby bool
		}
	}](t, g.client, `query { viewer { ... on User { id email enablePaidHobby } ... on Macaroon { email } } }`, nil)
	if who.Viewer.ID == "" || who.Viewer.Email == "" {
		t.Errorf("whoami prints %+v", who)
	}
	list := ask[struct{ Organizations struct{ Nodes []graphOrg } }](t, g.client, `query($admin: Boolean!) { organizations(admin: $admin) {
		nodes { id slug rawSlug name type paidPlan billable viewerRole internalNumericId } } }`, map[string]any{"admin": false})
	if n := list.Organizations.Nodes; len(n) != 1 || n[0].Slug != "personal" || n[0].Type != "PERSONAL" || n[0].ViewerRole != "admin" || n[0].InternalNumericID == "" {
		t.Errorf("organizations are %+v", n)
	}
	details := ask[struct {
		OrganizationDetails struct {
			ID, Slug, Name string
			Members        struct {
				Edges []struct {
					Cursor, Role string
					Node         graphUser
					JoinedAt     time.Time
				}
			}
		}
	}](t, g.client, `query($slug: String!) { organizationdetails: organization(slug: $slug) { id slug name type viewerRole internalNumericId
		remoteBuilderImage remoteBuilderApp { name } members { edges { cursor node { id name email } joinedAt role } } } }`, map[string]any{"slug": "personal"})
	if details.OrganizationDetails.ID != list.Organizations.Nodes[0].ID {
		t.Errorf("details are %+v", details)
	}
}

func (g graphWorld) create(t *testing.T) {
	const byName = `query GetApp($name: String!) { app(name: $name) { ...AppData } }
		fragment AppData on App { id name deployed platformVersion cnameTarget secrets { name } organization { ...OrganizationData } }
		fragment OrganizationData on Organization { id slug rawSlug paidPlan addOnSsoLink provisionsBetaExtensions name billable }`
	var none struct{ App graphApp }
	err := g.graph(t.Context(), byName, map[string]any{"name": "web"}, &none)
	if err == nil || !strings.Contains(err.Error(), "Could not find App") {
		t.Fatalf("a name that is free: %v", err)
	}
	regions := ask[struct {
		Platform struct {
			RequestRegion string
			Regions       []struct {
				Code, Name                                     string
				Latitude, Longitude                            float32
				GatewayAvailable, RequiresPaidPlan, Deprecated bool
			}
		}
	}](t, g.client, `query { platform { requestRegion regions { name code latitude longitude gatewayAvailable requiresPaidPlan deprecated } } }`, nil)
	if len(regions.Platform.Regions) == 0 || regions.Platform.Regions[0].Code == "" || regions.Platform.RequestRegion == "" {
		t.Errorf("the platform is %+v", regions)
	}
	if _, err := g.createApp(t.Context(), "web"); err != nil {
		t.Fatal(err)
	}
	if a := ask[struct{ App graphApp }](t, g.client, byName, map[string]any{"name": "web"}).App; a.ID != "web" || a.PlatformVersion != "machines" || a.Deployed {
		t.Errorf("created is %+v", a)
	}
	page := ask[struct {
		Apps struct {
			PageInfo struct {
				HasNextPage bool
				EndCursor   string
			}
			Nodes []graphApp
		}
	}](t, g.client, `query($org: ID, $role: String, $after: String) { apps(type: "container", first: 200, after: $after, organizationId: $org, role: $role) {
		pageInfo { hasNextPage endCursor } nodes { id name deployed hostname platformVersion organization { slug name } currentRelease { createdAt status } status } } }`,
		map[string]any{"after": ""})
	if len(page.Apps.Nodes) != 1 || page.Apps.PageInfo.HasNextPage || page.Apps.Nodes[0].CurrentRelease != nil {
		t.Errorf("apps are %+v", page)
	}
}

// published is a release as deployers decode it.
type published struct {
	ID         string    `json:"id"`
	Version    int       `json:"version"`
	Stable     bool      `json:"stable"`
	InProgress bool      `json:"in_progress"`
	Status     string    `json:"status"`
	Strategy   string    `json:"strategy"`
	User       string    `json:"user"`
	CreatedAt  time.Time `json:"created_at"`
	ImageRef   string    `json:"image_ref"`
}

// deploy is what deploy --image does.
func (g graphWorld) deploy(t *testing.T) {
	ctx := t.Context()
	var org struct {
		Organization struct {
			ID                string `json:"id"`
			InternalNumericID int    `json:"internal_numeric_id"`
		} `json:"organization"`
	}
	must(t, "organization", g.call(ctx, http.MethodGet, "/api/v1/organizations/personal", nil, &org))
	var build struct {
		ID     int64  `json:"id"`
		Status string `json:"status"`
		Took   int64  `json:"wallclock_time_ms"`
	}
	must(t, "build", g.call(ctx, http.MethodPost, "/api/v1/builds", map[string]any{
		"app_name": "web", "builder_type": "local", "strategies_available": []string{"image"},
	}, &build))
	resolved := ask[struct{ App graphApp }](t, g.client, `query ($appName: String!, $imageRef: String!) { app(name: $appName) { id image(ref: $imageRef) {
		id digest ref compressedSize: compressedSizeFull } } }`, map[string]any{"appName": "web", "imageRef": g.image}).App.Image
	if resolved == nil || !strings.HasPrefix(resolved.Digest, "sha256:") || resolved.CompressedSize == 0 {
		t.Fatalf("the image is %+v", resolved)
	}
	must(t, "end of the build", g.call(ctx, http.MethodPost, "/api/v1/builds/finish", map[string]any{
		"app_name": "web", "build_id": build.ID, "machine_id": "", "status": "completed", "strategies_attempted": []any{}, "timings": map[string]any{},
		"final_image": map[string]any{"id": resolved.ID, "tag": g.image, "size_bytes": resolved.CompressedSize},
	}, &build))
	var made struct {
		Release published `json:"release"`
	}
	must(t, "release", g.call(ctx, http.MethodPost, "/api/v1/releases", map[string]any{
		"app_name": "web", "build_id": build.ID, "image": g.image, "platform_version": "machines", "strategy": "ROLLING",
		"definition": map[string]any{"app": "web", "primary_region": "loc"},
	}, &made))
	if made.Release.Version != 1 || !made.Release.InProgress || made.Release.User == "" {
		t.Errorf("the release is %+v", made)
	}
	var now published
	path := "/api/v1/releases/" + made.Release.ID
	must(t, "running", g.call(ctx, http.MethodPatch, path, map[string]any{"status": "running", "metadata": nil}, &now))
	_, err := g.launch(ctx, "web", launch{Name: "one", Config: &machineConfig{Image: resolved.Ref, Guest: &guest{CPUKind: "shared", CPUs: 1, MemoryMB: 256}}})
	must(t, "launch", err)
	must(t, "complete", g.call(ctx, http.MethodPatch, path, map[string]any{"status": "complete", "metadata": map[string]any{"post_deployment_info": map[string]any{}}}, &now))
	if !now.Stable || now.InProgress || now.Status != "complete" {
		t.Errorf("the release has become %+v", now)
	}
	unpinned, _, _ := strings.Cut(g.image, "@")
	missing := ask[struct{ App graphApp }](t, g.client, `query { app(name: "web") { image(ref: "`+unpinned+`-none") { id } } }`, nil)
	if missing.App.Image != nil {
		t.Errorf("an image that there is not is %+v", missing.App.Image)
	}
}

func (g graphWorld) status(t *testing.T) {
	a := ask[struct{ AppCompact graphApp }](t, g.client, `query ($appName: String!) { appcompact: app(name: $appName) { id internalNumericId name hostname deployed status appUrl platformVersion
		organization { id internalNumericId slug paidPlan } postgresAppRole: role { name } } }`, map[string]any{"appName": "web"}).AppCompact
	if !a.Deployed || a.Status != "deployed" || a.InternalNumericID == 0 || a.PostgresAppRole != nil || a.Organization.InternalNumericID == "" {
		t.Errorf("compact is %+v", a)
	}
	err := g.graph(t.Context(), `query($image: String!, $flyVersion: String) { latestImageDetails(image: $image, flyVersion: $flyVersion) { registry repository tag version digest } }`,
		map[string]any{"image": g.image, "flyVersion": ""}, &struct{}{})
	if err == nil || err.Error() != "Unknown repository" {
		t.Errorf("whether there is a newer image: %v", err)
	}
	r := ask[struct{ App graphApp }](t, g.client, `query ($appName: String!) { app(name: $appName) { currentRelease: currentReleaseUnprocessed {
		id version description reason status imageRef stable user { id email name } createdAt } } }`, map[string]any{"appName": "web"}).App.CurrentRelease
	if r == nil || r.Version != 1 || r.Status != "complete" || !r.Stable || r.ImageRef != g.image || r.CreatedAt.IsZero() {
		t.Errorf("the current release is %+v", r)
	}
	big := ask[struct{ App graphApp }](t, g.client, `query ($appName: String!) { app(name: $appName) { id version config { definition }
		currentRelease { evaluationId status inProgress version } services { description protocol internalPort ports { port handlers } }
		ipAddresses { nodes { id address type createdAt } } imageDetails { registry repository tag digest version }
		machines { nodes { id name config state region createdAt app { name } ips { nodes { family kind ip maskSize } } host { id } } }
		limitedAccessTokens { nodes { id name expiresAt } } } }`, map[string]any{"appName": "web"}).App
	if big.Version != 1 || big.Config.Definition["app"] != "web" || big.ImageDetails.Digest == "" || len(big.Machines.Nodes) != 1 || big.LimitedAccessTokens == nil {
		t.Fatalf("the App is %+v", big)
	}
	if m := big.Machines.Nodes[0]; m.App.Name != "web" || m.Host.ID == "" || len(m.IPs.Nodes) != 1 || m.Config["image"] == nil {
		t.Errorf("its Machine is %+v", m)
	}
	issues := ask[struct {
		AppHostIssues struct{ HostIssues struct{ Nodes []any } }
	}](t, g.client, `query($appName: String!) { apphostissues: app(name: $appName) { hostIssues { nodes { internalId message createdAt updatedAt } } } }`, map[string]any{"appName": "web"})
	if issues.AppHostIssues.HostIssues.Nodes == nil {
		t.Error("issues are null")
	}
}

// redeploy is what secrets set and config show ask.
func (g graphWorld) redeploy(t *testing.T) {
	a := ask[struct{ App graphApp }](t, g.client, `query FlyctlConfigCurrentRelease($appName: String!) { app(name: $appName) { currentReleaseUnprocessed { id version imageRef configDefinition } } }`,
		map[string]any{"appName": "web"}).App
	if r := a.CurrentReleaseUnprocessed; r == nil || r.ConfigDefinition["primary_region"] != "loc" || r.ImageRef != g.image {
		t.Errorf("the current release is %+v", r)
	}
	list := ask[struct{ App graphApp }](t, g.client, `query($appName: String!, $limit: Int!) { app(name: $appName) { releases: releasesUnprocessed(first: $limit) { nodes {
		id version description reason status imageRef stable user { id email name } createdAt } } } }`, map[string]any{"appName": "web", "limit": 25, "status": "complete"})
	if len(list.App.Releases.Nodes) != 1 {
		t.Errorf("releases are %+v", list.App.Releases)
	}
	set := ask[struct {
		SetSecrets struct{ Release *graphRelease }
	}](t, g.client, `mutation SetSecrets($input: SetSecretsInput!) { setSecrets(input: $input) { release { id version } } }`,
		map[string]any{"input": map[string]any{"appId": "web", "secrets": []map[string]string{{"key": "A", "value": "1"}}}})
	if set.SetSecrets.Release != nil {
		t.Errorf("secrets made a release: %+v", set)
	}
}

func (g graphWorld) ips(t *testing.T) {
	made := ask[struct {
		AllocateIPAddress struct{ IPAddress graphAddress }
	}](t, g.client, `mutation($input: AllocateIPAddressInput!) { allocateIpAddress(input: $input) {
		ipAddress { id address type region createdAt } } }`, map[string]any{"input": map[string]any{"appId": "web", "type": "v6", "region": ""}}).AllocateIPAddress.IPAddress
	if _, err := netip.ParseAddr(made.Address); err != nil || made.Type != "v6" || made.CreatedAt.IsZero() {
		t.Errorf("allocated is %+v", made)
	}
	shared := ask[struct{ AllocateIPAddress struct{ App graphApp } }](t, g.client, `mutation($input: AllocateIPAddressInput!) { allocateIpAddress(input: $input) { app { sharedIpAddress } } }`,
		map[string]any{"input": map[string]any{"appId": "web", "type": "shared_v4", "region": ""}})
	if shared.AllocateIPAddress.App.SharedIPAddress == "" {
		t.Errorf("the shared one is %+v", shared)
	}
	const list = `query ($appName: String!) { app(name: $appName) { ipAddresses { nodes { id address type region createdAt network { name organization { slug } } serviceName } } sharedIpAddress } }`
	a := ask[struct{ App graphApp }](t, g.client, list, map[string]any{"appName": "web"}).App
	if len(a.IPAddresses.Nodes) != 1 || a.IPAddresses.Nodes[0].Address != made.Address || a.SharedIPAddress == "" {
		t.Errorf("addresses are %+v", a)
	}
	ask[struct {
		ReleaseIPAddress struct{ ClientMutationID *string }
	}](t, g.client, `mutation($input: ReleaseIPAddressInput!) { releaseIpAddress(input: $input) { clientMutationId } }`,
		map[string]any{"input": map[string]any{"appId": "web", "ipAddressId": nil, "ip": made.Address}})
	if a := ask[struct{ App graphApp }](t, g.client, list, map[string]any{"appName": "web"}).App; len(a.IPAddresses.Nodes) != 0 {
		t.Errorf("addresses are %+v, want none", a.IPAddresses)
	}
	egress := ask[struct{ App graphApp }](t, g.client, `query ($appName: String!) { app(name: $appName) { egressIpAddresses { nodes { id ip version region updatedAt } } } }`, map[string]any{"appName": "web"})
	if egress.App.EgressIPAddresses.Nodes == nil {
		t.Error("egress addresses are null")
	}
}

// withoutApp is how commands find the App of a Machine or a volume that is named alone.
func (g graphWorld) withoutApp(t *testing.T) {
	list, err := g.list(t.Context(), "web", "")
	if err != nil || len(list) == 0 {
		t.Fatalf("%v, %v", list, err)
	}
	m := ask[struct {
		GqlMachine struct {
			ID, Name string
			App      struct {
				Name         string
				Organization graphOrg
			}
		}
	}](t, g.client, `query ($machineId: String!) { gqlmachine: machine(machineId: $machineId) { id name app { name organization { id slug } } } }`, map[string]any{"machineId": list[0].ID})
	if m.GqlMachine.App.Name != "web" || m.GqlMachine.App.Organization.Slug != "personal" {
		t.Errorf("the Machine is %+v", m)
	}
	made := ask[struct {
		CreateVolume struct{ Volume struct{ ID string } }
	}](t, g.client, `mutation($input: CreateVolumeInput!) { createVolume(input: $input) { app { name } volume { id name app { name } region sizeGb encrypted createdAt host { id } } } }`,
		map[string]any{"input": map[string]any{"appId": "web", "name": "data", "region": "loc", "sizeGb": 1, "encrypted": true, "snapshotId": nil, "requireUniqueZone": true}})
	v := ask[struct {
		Volume struct {
			App   struct{ Name string }
			State string
		}
	}](t, g.client, `query GetAppNameStateFromVolume($id: ID!) { volume: node(id: $id) { ... on Volume { app { name } state } } }`, map[string]any{"id": made.CreateVolume.Volume.ID})
	if v.Volume.App.Name != "web" || v.Volume.State != "created" {
		t.Errorf("the volume is %+v", v)
	}
}

func (g graphWorld) tokens(t *testing.T) {
	const create = `mutation CreateLimitedAccessToken($name: String!, $organizationId: ID!, $profile: String!, $profileParams: JSON, $expiry: String!) {
		createLimitedAccessToken(input: {name: $name, organizationId: $organizationId, profile: $profile, profileParams: $profileParams, expiry: $expiry}) {
			limitedAccessToken { tokenHeader } } }`
	type answer struct {
		CreateLimitedAccessToken struct{ LimitedAccessToken struct{ TokenHeader string } }
	}
	made := ask[answer](t, g.client, create, map[string]any{
		"name": "ci", "organizationId": "personal", "profile": "deploy", "profileParams": map[string]any{"app_id": "web"}, "expiry": "175200h0m0s",
	})
	c := newClient(t, g.daemon, made.CreateLimitedAccessToken.LimitedAccessToken.TokenHeader)
	who := ask[struct{ Viewer struct{ Email string } }](t, c, `query { viewer { ... on User { id email } ... on Macaroon { email } } }`, nil)
	if who.Viewer.Email == "" {
		t.Errorf("the token is of %+v", who)
	}
	list := ask[struct{ AppLimitedAccessTokens *graphApp }](t, g.client, `query ($appName: String!) { appLimitedAccessTokens: app(name: $appName) { limitedAccessTokens { nodes {
		id name token expiresAt revokedAt user { email } } } } }`, map[string]any{"appName": "web"})
	nodes := list.AppLimitedAccessTokens.LimitedAccessTokens.Nodes
	i := slices.IndexFunc(nodes, func(n graphToken) bool { return n.Name == "ci" })
	if i < 0 || nodes[i].Token != "" || nodes[i].ExpiresAt.IsZero() || nodes[i].RevokedAt != nil {
		t.Fatalf("tokens are %+v", nodes)
	}
	ask[struct{}](t, g.client, `mutation($input: DeleteLimitedAccessTokenInput!) { deleteLimitedAccessToken(input: $input) { token } }`, map[string]any{"input": map[string]any{"id": nodes[i].ID}})
	if err := c.graph(t.Context(), `query { viewer { __typename } }`, nil, &struct{}{}); failure(t, err).status != http.StatusUnauthorized {
		t.Errorf("a token that was revoked: %v", err)
	}
}

func (g graphWorld) peers(t *testing.T) {
	issued := ask[struct {
		IssueCertificate struct{ Certificate, Key string }
	}](t, g.client, `mutation($input: IssueCertificateInput!) { issueCertificate(input: $input) { certificate, key } }`,
		map[string]any{"input": map[string]any{"organizationId": "personal", "principals": []string{"root"}, "appNames": []string{"web"}, "publicKey": "", "validHours": 1}}).IssueCertificate
	signer, err := ssh.ParsePrivateKey([]byte(issued.Key))
	if err != nil {
		t.Fatal(err)
	}
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(issued.Certificate))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ssh.NewCertSigner(key.(*ssh.Certificate), signer); err != nil {
		t.Error(err)
	}
	authority := ask[struct {
		Organization struct {
			LoggedCertificates *struct {
				Nodes []struct {
					Root bool
					Cert string
				}
			}
		}
	}](t, g.client, `query($slug: String!) { organization(slug: $slug) { loggedCertificates { nodes { root cert } } } }`, map[string]any{"slug": "personal"})
	if nodes := authority.Organization.LoggedCertificates.Nodes; len(nodes) != 1 || !nodes[0].Root || !strings.HasPrefix(nodes[0].Cert, "ssh-ed25519 ") {
		t.Errorf("authorities are %+v", nodes)
	}
	validated := ask[struct {
		ValidateWireGuardPeers struct{ InvalidPeerIPs []string }
	}](t, g.client, `mutation($input: ValidateWireGuardPeersInput!) { validateWireGuardPeers(input: $input) { invalidPeerIps } }`,
		map[string]any{"input": map[string]any{"peerIps": []string{"fdaa:0:9::2"}}})
	if len(validated.ValidateWireGuardPeers.InvalidPeerIPs) != 1 {
		t.Errorf("invalid are %+v", validated)
	}
	nearest := ask[struct{ NearestRegion *struct{ Code, Name string } }](t, g.client, `query { nearestRegion(wireguardGateway: true) { code name gatewayAvailable deprecated } }`, nil)
	if nearest.NearestRegion == nil || nearest.NearestRegion.Code == "" {
		t.Errorf("the nearest region is %+v", nearest)
	}
}

func (g graphWorld) refused(t *testing.T) {
	for name, c := range map[string]struct {
		query, text string
	}{
		"a name that is taken": {`mutation { createApp(input: {organizationId: "personal", name: "web"}) { app { id } } }`, "Name has already been taken"},
		"a machine":            {`query { machine(machineId: "ffffffffffffff") { id } }`, "machine not found"},
		"a database":           {`mutation { attachPostgresCluster(input: {appId: "web"}) { app { id } } }`, "no managed databases"},
		"a builder":            {`mutation { ensureMachineRemoteBuilder(input: {appName: "web"}) { app { id } } }`, "builds no images"},
		"an organization":      {`query { organization(slug: "nowhere") { id } }`, "Could not find Organization"},
	} {
		if err := g.graph(t.Context(), c.query, nil, &struct{}{}); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
}

func (g graphWorld) destroy(t *testing.T) {
	addOns := ask[struct {
		Organization struct{ AddOns struct{ Nodes []any } }
	}](t, g.client, `query ListOrganizationAddOns($slug: String!, $type: String) { organization(slug: $slug) { addOns(type: $type) { nodes { id } } } }`,
		map[string]any{"slug": "personal", "type": "tigris"})
	if addOns.Organization.AddOns.Nodes == nil {
		t.Error("add-ons are null")
	}
	ask[struct {
		DeleteApp struct{ Organization graphOrg }
	}](t, g.client, `mutation($appId: ID!) { deleteApp(appId: $appId) { organization { id } } }`, map[string]any{"appId": "web"})
	if list, err := g.apps(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("apps are %+v, %v", list, err)
	}
}
