package api

import "maps"

// Commands returns the command line of the CLI that does what an operation does, by the ID of the
// operation. The document shows it beside the request.
func Commands() map[string]string { return maps.Clone(commands) }

//nolint:gosec // G101: no credential is in it
var commands = map[string]string{
	"createApp":  "hangar apps create web",
	"listApps":   "hangar apps list",
	"getApp":     "hangar apps status web",
	"destroyApp": "hangar apps destroy web",

	"createMachine":   "hangar machine run web nginx",
	"listMachines":    "hangar machine list web",
	"listOrgMachines": "hangar machine list --org personal",
	"getMachine":      "hangar machine status web d8912340000002",
	"updateMachine":   "hangar machine update web d8912340000002 --image nginx:1.29",
	"startMachine":    "hangar machine start web d8912340000002",
	"stopMachine":     "hangar machine stop web d8912340000002",
	"suspendMachine":  "hangar machine suspend web d8912340000002",
	"restartMachine":  "hangar machine restart web d8912340000002",
	"destroyMachine":  "hangar machine destroy web d8912340000002",
	"waitMachine":     "hangar machine wait web d8912340000002 --state started",
	"cordonMachine":   "hangar machine cordon web d8912340000002",
	"uncordonMachine": "hangar machine uncordon web d8912340000002",
	"listEvents":      "hangar machine events web d8912340000002",
	"keepMachineBusy": "hangar machine busy web d8912340000002 5m",

	"execMachine":   "hangar machine exec web d8912340000002 cat /etc/hostname",
	"execStream":    "hangar machine exec -it web d8912340000002 sh",
	"listProcesses": "hangar machine ps web d8912340000002",
	"signalMachine": "hangar machine signal web d8912340000002 SIGHUP",
	"dialMachine":   "hangar proxy 15432:5432 web",

	"acquireLease": "hangar machine lease acquire web d8912340000002",
	"getLease":     "hangar machine lease view web d8912340000002",
	"releaseLease": "hangar machine lease release web d8912340000002",

	"getMetadata":       "hangar machine metadata list web d8912340000002",
	"getMetadataKey":    "hangar machine metadata get web d8912340000002 role",
	"setMetadataKey":    "hangar machine metadata set web d8912340000002 role=worker",
	"removeMetadataKey": "hangar machine metadata remove web d8912340000002 role",

	"createVolume":         "hangar volumes create web data --size 10",
	"listVolumes":          "hangar volumes list web",
	"getVolume":            "hangar volumes show web " + string(exampleVolumeID),
	"updateVolume":         "hangar volumes update web " + string(exampleVolumeID) + " --snapshot-retention 30",
	"extendVolume":         "hangar volumes extend web " + string(exampleVolumeID) + " --size 20",
	"destroyVolume":        "hangar volumes destroy web " + string(exampleVolumeID),
	"undeleteVolume":       "hangar volumes undelete web " + string(exampleVolumeID),
	"listVolumeEvents":     "hangar volumes events web " + string(exampleVolumeID),
	"purgeVolume":          "hangar volumes purge " + string(exampleVolumeID),
	"listDestroyedVolumes": "hangar volumes list --org personal --destroyed",
	"createSnapshot":       "hangar volumes snapshots create web " + string(exampleVolumeID),
	"listSnapshots":        "hangar volumes snapshots list web " + string(exampleVolumeID),
	"drillVolumes":         "hangar volumes drill web",

	"listSecrets":         "hangar secrets list web",
	"setSecrets":          "hangar secrets set web DATABASE_URL=postgres://db.internal/web",
	"setSecret":           "hangar secrets set web DATABASE_URL=postgres://db.internal/web",
	"deleteSecret":        "hangar secrets unset web DATABASE_URL",
	"listSecretKeys":      "hangar secretkeys list web",
	"generateSecretKey":   "hangar secretkeys generate web session hs256",
	"deleteSecretKey":     "hangar secretkeys delete web session",
	"rotateEncryptionKey": "hangar secrets rotate-key",

	"allocateAddress": "hangar ips allocate web --shared",
	"listAddresses":   "hangar ips list web",
	"releaseAddress":  "hangar ips release web 203.0.113.7",

	"requestCertificate": "hangar certs add web " + string(exampleHostname),
	"uploadCertificate":  "hangar certs import web " + string(exampleHostname) + " --fullchain chain.pem --private-key key.pem",
	"listCertificates":   "hangar certs list web",
	"getCertificate":     "hangar certs show web " + string(exampleHostname),
	"checkCertificate":   "hangar certs check web " + string(exampleHostname),
	"removeCertificate":  "hangar certs remove web " + string(exampleHostname),

	"pollLogs":   "hangar logs web",
	"followLogs": "hangar logs web --follow",

	"listReleases":      "hangar releases list web",
	"getCurrentRelease": "hangar releases show web",

	"queryMetrics": "hangar metrics query 'sum(rate(platform_edge_http_responses_count)) by (app)'",
	"listAlerts":   "hangar alerts list",
	"setAlerts":    "hangar alerts set alerts.yml",
	"deleteAlerts": "hangar alerts remove",
	"testAlerts":   "hangar alerts test alerts.yml",

	"createOrg":  "hangar orgs create acme",
	"listOrgs":   "hangar orgs list",
	"getOrg":     "hangar orgs show personal",
	"deleteOrg":  "hangar orgs delete personal",
	"listQuotas": "hangar orgs quota show personal",

	"createToken":       "hangar tokens create org personal",
	"createDeployToken": "hangar tokens create deploy web",
	"listTokens":        "hangar tokens list",
	"revokeToken":       "hangar tokens revoke 4k7fbw2hxq3s",

	"listUsers":        "hangar users list",
	"currentUser":      "hangar users show",
	"inviteUser":       "hangar users invite ada@example.com",
	"listInvitations":  "hangar users invitations",
	"acceptInvitation": "hangar users accept",

	"listWebhooks": "hangar webhooks list personal",
	"createPeer":   "hangar wireguard create",
	"listPeers":    "hangar wireguard list",

	"listExtensions":  "hangar extensions list web",
	"getExtension":    "hangar extensions show web web-logs",
	"createExtension": "hangar extensions create web logs",
	"retryExtension":  "hangar extensions retry web web-logs",
	"linkExtension":   "hangar extensions open web web-logs",
	"createProvider":  "hangar providers create logs https://logs.example.com",
	"listProviders":   "hangar providers list",
	"getProvider":     "hangar providers show logs",

	"listImages":     "hangar image list",
	"listRegistries": "hangar registry list",
	"setRegistry":    "hangar registry login " + exampleRegistry + " -u ada",
	"deleteRegistry": "hangar registry logout " + exampleRegistry,

	"issueMachineIdentityToken": "hangar oidc token web d8912340000002",
	"listSigningKeys":           "hangar oidc keys",
	"rotateSigningKey":          "hangar oidc rotate",

	"listHosts":       "hangar host list",
	"listHostUsage":   "hangar host top",
	"createJoinToken": "hangar host token create",
	"listJoinTokens":  "hangar host token list",
}
