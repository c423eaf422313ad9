package graphql

import (
	"encoding/json"
	"strings"
	"time"

	"github.com/hangar-platform/hangar"
	"github.com/hangar-platform/hangar/api/graphql/execute"
	"github.com/hangar-platform/hangar/api/input"
)

// payload is the answer of a mutation, by the names of its fields.
type payload map[string]any

// clientMutationID is a text of the client that the answer repeats.
const clientMutationID = "clientMutationId"

func definePayload(s *schema, name string, keys ...string) {
	all := fields[payload]{}
	for _, key := range keys {
		all[key] = func(_ *query, p payload, _ args) (any, error) { return p[key], nil }
	}
	execute.Define(s, name, all)
}

func definePayloads(s *schema) {
	for name, keys := range map[string][]string{
		"CreateAppPayload":                    {"app"},
		"SecretsPayload":                      {"app", "release"},
		"AllocateIPAddressPayload":            {"app", "ipAddress"},
		"ReleaseIPAddressPayload":             {"app"},
		"AddCertificatePayload":               {"app", "certificate", "check"},
		"CreateOrganizationPayload":           {"organization"},
		"DeleteOrganizationPayload":           {"deletedOrganizationId"},
		"DeleteOrganizationMembershipPayload": {"organization", "user"},
		"CreateLimitedAccessTokenPayload":     {"limitedAccessToken"},
		"DeleteLimitedAccessTokenPayload":     {"token"},
		"ReleasePayload":                      {"release"},
		"VolumePayload":                       {"app", "volume", "needsRestart"},
		"MachinePayload":                      {"machine"},
		"AddWireGuardPeerPayload":             {"peerip", "endpointip", "pubkey"},
		"RemoveWireGuardPeerPayload":          {"organization"},
		"ValidateWireGuardPeersPayload":       {"validPeerIps", "invalidPeerIps"},
		"IssueCertificatePayload":             {"certificate", "key"},
		"LogOutPayload":                       {"ok"},
	} {
		definePayload(s, name, append(keys, clientMutationID)...)
	}
	definePayload(s, "DeleteAppPayload", "organization")
	definePayload(s, "DeleteCertificatePayload", "app", "certificate")
}

// change is a mutation with its input.
type change func(q *query, in args) (payload, error)

// direct is a mutation whose input is its arguments.
func direct(do change) execute.Resolver[*asking, root] {
	return func(q *query, _ root, in args) (any, error) {
		made, err := do(q, in)
		clear(q.Services.current) // which may have changed
		if err != nil {
			return nil, err
		}
		return made, nil
	}
}

// wrapped is a mutation whose only argument holds its input.
func wrapped(do change) execute.Resolver[*asking, root] {
	return direct(func(q *query, in args) (payload, error) {
		in = in.Object("input")
		made, err := do(q, in)
		if err == nil {
			made[clientMutationID] = orNull(in.Text(clientMutationID))
		}
		return made, err
	})
}

func defineMutation(s *schema) {
	execute.Define(s, "Mutation", fields[root]{
		"createApp":                    wrapped(createApp),
		"deleteApp":                    direct(deleteApp),
		"setSecrets":                   wrapped(setSecrets),
		"unsetSecrets":                 wrapped(unsetSecrets),
		"allocateIpAddress":            wrapped(allocateAddress),
		"releaseIpAddress":             wrapped(releaseAddress),
		"addCertificate":               direct(addCertificate),
		"checkCertificate":             wrapped(checkCertificate),
		"deleteCertificate":            direct(deleteCertificate),
		"createOrganization":           wrapped(createOrg),
		"deleteOrganization":           wrapped(deleteOrg),
		"deleteOrganizationMembership": wrapped(removeMember),
		"createLimitedAccessToken":     wrapped(createToken),
		"deleteLimitedAccessToken":     wrapped(deleteToken),
		"createRelease":                wrapped(createRelease),
		"updateRelease":                wrapped(updateRelease),
		"createVolume":                 wrapped(createVolume),
		"extendVolume":                 wrapped(extendVolume),
		"deleteVolume":                 wrapped(deleteVolume),
		"startMachine":                 wrapped(startMachine),
		"stopMachine":                  wrapped(stopMachine),
		"removeMachine":                wrapped(removeMachine),
		"addWireGuardPeer":             wrapped(addPeer),
		"removeWireGuardPeer":          wrapped(removePeer),
		"validateWireGuardPeers":       wrapped(validatePeers),
		"issueCertificate":             wrapped(issueCertificate),
		"logOut": wrapped(func(q *query, _ args) (payload, error) {
			return payload{"ok": true}, q.Services.Users.SignOut(q)
		}),
	})
}

func createApp(q *query, in args) (payload, error) {
	of, err := slug(q, in.Text("organizationId"))
	if err != nil {
		return nil, err
	}
	if in.Text("name") == "" {
		return nil, input.Invalid("name", "is required")
	}
	request := hangar.AppCreate{Name: hangar.AppName(in.Text("name")), Org: of, Network: in.Text("network")}
	made, err := called(q, func() (*hangar.App, error) { return q.Services.Apps.CreateApp(q, request) })
	return payload{"app": made}, err
}

// deleteApp destroys an App even while Machines run, which is what clients expect.
func deleteApp(q *query, in args) (payload, error) {
	gone, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	return payload{"organization": &gone.Org}, q.Services.Apps.DestroyApp(q, gone.Name, true)
}

func setSecrets(q *query, in args) (payload, error) {
	of, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	values := map[string]hangar.Sensitive{}
	if all := in.Bool("replaceAll"); all != nil && *all {
		before, err := called(q, func() (hangar.Secrets, error) { return q.Services.Secrets.Secrets(q, of.Name, hangar.SecretQuery{}) })
		if err != nil {
			return nil, err
		}
		for _, old := range before.List {
			values[old.Name] = hangar.Sensitive{}
		}
	}
	for _, secret := range in.Objects("secrets") {
		values[secret.Text("key")] = hangar.NewSensitive(secret.Text("value"))
	}
	return changeSecrets(q, of, values)
}

func unsetSecrets(q *query, in args) (payload, error) {
	of, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	values := map[string]hangar.Sensitive{}
	for _, key := range in.Texts("keys") {
		values[key] = hangar.Sensitive{}
	}
	return changeSecrets(q, of, values)
}

func changeSecrets(q *query, of *hangar.App, values map[string]hangar.Sensitive) (payload, error) {
	_, err := called(q, func() (hangar.Secrets, error) { return q.Services.Secrets.SetSecrets(q, of.Name, values) })
	return payload{"app": of, "release": nil}, err
}

// slugOf makes a slug of the name of an organization: its letters and digits, with dashes for the rest.
func slugOf(name string) hangar.OrgSlug {
	words := strings.FieldsFunc(strings.ToLower(name), func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
	return hangar.OrgSlug(strings.Join(words, "-"))
}

func createOrg(q *query, in args) (payload, error) {
	name := in.Text("name")
	made, err := called(q, func() (*hangar.Org, error) {
		return q.Services.Orgs.CreateOrg(q, hangar.OrgCreate{Slug: slugOf(name), Name: name})
	})
	return payload{"organization": made}, err
}

func deleteOrg(q *query, in args) (payload, error) {
	gone, err := org(q, in.Text("organizationId"))
	if err != nil {
		return nil, err
	}
	return payload{"deletedOrganizationId": gone.ID}, q.Services.Orgs.DeleteOrg(q, gone.Slug)
}

func removeMember(q *query, in args) (payload, error) {
	of, err := org(q, in.Text("organizationId"))
	if err != nil {
		return nil, err
	}
	ref := hangar.UserRef(in.Text("userId"))
	gone, err := called(q, func() (*hangar.User, error) { return q.Services.Users.User(q, ref) })
	if err != nil {
		return nil, err
	}
	return payload{"organization": of, "user": gone}, q.Services.Users.RemoveMember(q, of.Slug, ref)
}

// document is a JSON value of the client; nil: there is none.
func document(in args, name string) (json.RawMessage, error) {
	v, ok := in[name]
	if !ok || v == nil {
		return nil, nil
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, input.Invalid(name, "is not a JSON value")
	}
	return raw, nil
}

func createRelease(q *query, in args) (payload, error) {
	of, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	request := hangar.ReleaseCreate{Image: in.Text("image"), Strategy: hangar.ReleaseStrategy(strings.ToLower(in.Text("strategy")))}
	if request.Definition, err = document(in, "definition"); err != nil {
		return nil, err
	}
	made, err := called(q, func() (*hangar.Release, error) { return q.Services.Releases.CreateRelease(q, of.Name, request) })
	return payload{"release": made}, err
}

func updateRelease(q *query, in args) (payload, error) {
	request := hangar.ReleaseUpdate{Status: hangar.ReleaseStatus(strings.ToLower(in.Text("status")))}
	var err error
	if request.Metadata, err = document(in, "metadata"); err != nil {
		return nil, err
	}
	made, err := called(q, func() (*hangar.Release, error) {
		return q.Services.Releases.UpdateRelease(q, hangar.ReleaseID(in.Text("releaseId")), request)
	})
	return payload{"release": made}, err
}

// ofVolume returns the payload of a mutation of a volume.
func ofVolume(q *query, v *hangar.Volume, needsRestart bool, err error) (payload, error) {
	if err != nil {
		return nil, err
	}
	of, err := app(q, string(v.App))
	return payload{"app": of, "volume": v, "needsRestart": needsRestart}, err
}

func createVolume(q *query, in args) (payload, error) {
	of, err := app(q, in.Text("appId"))
	if err != nil {
		return nil, err
	}
	request := hangar.VolumeCreate{
		Name: in.Text("name"), Region: hangar.Region(in.Text("region")), Encrypted: in.Bool("encrypted"),
		Snapshot: hangar.SnapshotID(in.Text("snapshotId")), UniqueZone: in.Bool("requireUniqueZone"),
	}
	if request.SizeGB, _, err = in.Int("sizeGb"); err != nil {
		return nil, err
	}
	made, err := called(q, func() (*hangar.Volume, error) { return q.Services.Volumes.CreateVolume(q, of.Name, request) })
	return ofVolume(q, made, false, err)
}

func extendVolume(q *query, in args) (payload, error) {
	size, _, err := in.Int("sizeGb")
	if err != nil {
		return nil, err
	}
	v, err := volumeByID(q, hangar.VolumeID(in.Text("volumeId")))
	if err != nil {
		return nil, err
	}
	made, err := called(q, func() (hangar.VolumeExtended, error) { return q.Services.Volumes.ExtendVolume(q, v.Ref(), size) })
	return ofVolume(q, made.Volume, made.NeedsRestart, err)
}

func deleteVolume(q *query, in args) (payload, error) {
	v, err := volumeByID(q, hangar.VolumeID(in.Text("volumeId")))
	if err != nil {
		return nil, err
	}
	gone, err := called(q, func() (*hangar.Volume, error) { return q.Services.Volumes.DestroyVolume(q, v.Ref()) })
	return ofVolume(q, gone, false, err)
}

// ofMachine runs a mutation of a Machine. The payload has the Machine after it.
func ofMachine(q *query, in args, act func(ref hangar.MachineRef) error) (payload, error) {
	m, err := machineByID(q, hangar.MachineID(in.Text("id")))
	if err != nil {
		return nil, err
	}
	if named := in.Text("appId"); named != "" {
		of, err := app(q, named)
		if err != nil {
			return nil, err
		}
		if of.Name != m.App {
			return nil, hangar.Errorf(hangar.CodeNotFound, hangar.ReasonMachineNotFound, "machine not found: %s", m.ID)
		}
	}
	if err := q.Call(); err != nil {
		return nil, err
	}
	if err := act(m.Ref()); err != nil {
		return nil, err
	}
	after, err := called(q, func() (*hangar.Machine, error) { return q.Services.Machines.Machine(q, m.Ref()) })
	return payload{"machine": after}, err
}

func startMachine(q *query, in args) (payload, error) {
	return ofMachine(q, in, func(ref hangar.MachineRef) error {
		_, err := q.Services.Machines.StartMachine(q, ref)
		return err
	})
}

func stopMachine(q *query, in args) (payload, error) {
	request := hangar.MachineStop{}
	if name := in.Text("signal"); name != "" {
		var err error
		if request.Signal, err = hangar.ParseSignal(name); err != nil {
			return nil, err
		}
	}
	seconds, _, err := in.Int("killTimeoutSecs")
	if err != nil {
		return nil, err
	}
	request.Timeout = time.Duration(seconds) * time.Second
	return ofMachine(q, in, func(ref hangar.MachineRef) error { return q.Services.Machines.StopMachine(q, ref, request) })
}

func removeMachine(q *query, in args) (payload, error) {
	force := in.Bool("kill")
	return ofMachine(q, in, func(ref hangar.MachineRef) error {
		return q.Services.Machines.DestroyMachine(q, ref, hangar.MachineDestroy{Force: force != nil && *force})
	})
}

// The parts of the public platform that this server does not have, and what to do instead.
const (
	noDatabases = "this server offers no managed databases; run the database in Machines with a volume, or create an extension: POST /v1/apps/{app}/extensions"
	noGPUs      = "this server offers no GPUs"
	noBilling   = "nothing costs anything here, so there is no billing; quotas limit what an organization may have: GET /v1/orgs/{org}/quotas"
	noAddOns    = "extensions are operations of the REST API: POST /v1/apps/{app}/extensions, or hangar extensions create"
	noBuilder   = "this server builds images only for hangar deploy --remote-only; or build the image yourself, push it to the registry of this server or another one, and deploy it with --image"
	noDomains   = "this server registers no domains and keeps no zones; give the App a hostname of yours: POST /v1/apps/{app}/certificates/acme"
	noEgress    = "this server gives Machines no egress addresses: they share the address of their server"
	noMoves     = "an App stays in its organization; create one in the other organization and deploy it there"
	noInvites   = "the code of an invitation is shown only once, and this answer has no field for it: POST /v1/invitations, or hangar users invite"
	noDelegates = "peers are created with tokens of the API: addWireGuardPeer, or POST /v1/orgs/{org}/wireguard_peers"
	noReplays   = "requests are replayed only to Apps of the same organization"
	noLocks     = "Machines are locked by leases: POST /v1/apps/{app}/machines/{machine}/lease"
	noNomad     = "Apps are Machines here: see the operations below /v1/apps/{app}/machines"
)

// instead says why the schema does not have a query or mutation of the public platform, and what to do.
// It is empty for an unknown name.
func instead(name string) string {
	known := map[string]string{
		"addOn": noAddOns, "addOns": noAddOns, "addOnProvider": noAddOns, "addOnPlan": noAddOns, "addOnPlans": noAddOns,
		"createAddOn": noAddOns, "updateAddOn": noAddOns, "deleteAddOn": noAddOns, "resetAddOnPassword": noAddOns,
		"createExtensionTosAgreement": noAddOns,
		"attachPostgresCluster":       noDatabases, "detachPostgresCluster": noDatabases, "enablePostgresConsul": noDatabases,
		"postgresAttachments": noDatabases, "createPostgresClusterDatabase": noDatabases, "createPostgresClusterUser": noDatabases,
		"createTemplateDeployment": noDatabases, "latestImageTag": noDatabases, "herokuIntegration": noNomad,
		"ensureRemoteBuilder": noBuilder, "ensureMachineRemoteBuilder": noBuilder, "updateRemoteBuilder": noBuilder,
		"ensureDepotRemoteBuilder": noBuilder, "createBuild": noBuilder, "finishBuild": noBuilder, "optimizeImage": noBuilder,
		"allocateEgressIpAddress": noEgress, "releaseEgressIpAddress": noEgress,
		"domain": noDomains, "createDomain": noDomains, "createAndRegisterDomain": noDomains, "checkDomain": noDomains,
		"exportDnsZone": noDomains, "importDnsZone": noDomains, "createDnsRecord": noDomains, "deleteDomain": noDomains,
		"moveApp": noMoves, "createOrganizationInvitation": noInvites,
		"createDelegatedWireGuardToken": noDelegates, "deleteDelegatedWireGuardToken": noDelegates,
		"addAllowedReplaySourceOrgs": noReplays, "removeAllowedReplaySourceOrgs": noReplays,
		"setRemoteBuilder": noBuilder, "setDepotRemoteBuilder": noBuilder,
		"lockApp": noLocks, "unlockApp": noLocks,
		"deployImage": noNomad, "scaleApp": noNomad, "setVmSize": noNomad, "setVmCount": noNomad, "configureRegions": noNomad,
		"updateAutoscaleConfig": noNomad, "restartApp": noNomad, "pauseApp": noNomad, "resumeApp": noNomad, "suspendApp": noNomad,
		"launchMachine": noNomad, "setAppsV2DefaultOn": noNomad,
		"products": noBilling, "createBillingSession": noBilling, "billingItems": noBilling, "setPagerdutyHandler": noBilling,
		"gpus": noGPUs, "gpuTypes": noGPUs,
	}
	return known[name]
}
