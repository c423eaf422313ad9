package spec_test

import "testing"

func tokenRows() []row {
	// No more than 20 requests of a daemon may have a token that is not valid.
	return []row{
		{
			says: "a request needs a token",
			do: `GET /v1/apps
				> authorization:
				401 {"error": "<text>"}
				POST /v1/apps {"app_name": "$new", "org_slug": "personal"}
				> authorization:
				401`,
		},
		{
			says: "a token that is not valid is refused",
			do: `GET /v1/apps/$app
				> authorization: Bearer nonsense
				401 {"error": "<text>"}`,
		},
		{
			says: "a token needs a scheme",
			do: `GET /v1/apps
				> authorization: $token
				401`,
		},
		{
			says: "a caller without a valid token does not learn what exists",
			do: `GET /v1/apps/$app
				> authorization: Bearer nonsense
				401 {"error": "<text as one>"}
				GET /v1/apps/$new
				> authorization: Bearer nonsense
				401 {"error": "$one"}`,
		},
		{
			says: "the scheme of a token is Bearer",
			do: `GET /v1/apps/$app
				> authorization: Bearer $token
				200`,
		},
		{
			says: "the scheme may be that of restricted tokens",
			do: `GET /v1/apps/$app
				> authorization: PlatformV1 $token
				200`,
		},
		{
			says: "a token that is restricted to an organization sees no other",
			do: `POST /v1/tokens {"kind": "org", "org_slug": "$org"}
				201 {"token": "<text as mine>"}
				GET /v1/apps/$app
				> authorization: Bearer $mine
				403
				GET /v1/apps
				> authorization: Bearer $mine
				200 {"total_apps": 0}
				POST /v1/apps {"app_name": "$new-one", "org_slug": "personal"}
				> authorization: Bearer $mine
				404
				POST /v1/apps {"app_name": "$new-one", "org_slug": "$org"}
				> authorization: Bearer $mine
				201`,
		},
		{
			says: "a read-only token permits reading and nothing else",
			do: `POST /v1/tokens {"kind": "readonly", "org_slug": "personal"}
				201 {"token": "<text as mine>"}
				GET $machine
				> authorization: PlatformV1 $mine
				200
				POST $machine/stop
				> authorization: PlatformV1 $mine
				403
				DELETE $machine?force=true
				> authorization: PlatformV1 $mine
				403
				POST /v1/apps/$app/machines {"config": {"image": "$image"}}
				> authorization: PlatformV1 $mine
				403
				GET $machine
				200 {"state": "started"}`,
		},
		{
			says: "a token of an App is for that App alone",
			do: `POST /v1/apps/$app/deploy_token {"expiry": "1h"}
				200 {"token": "<text as mine>"}
				POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				> authorization: Bearer $mine
				200
				GET /v1/apps/$app2
				> authorization: Bearer $mine
				403
				POST /v1/apps/$app2/machines {"config": {"image": "$image"}}
				> authorization: Bearer $mine
				404`,
		},
		{
			says: "a token that was revoked is not valid any more",
			do: `POST /v1/tokens {"kind": "readonly", "org_slug": "personal"}
				201 {"token": "<text as mine>", "id": "<text as id>"}
				GET /v1/apps/$app
				> authorization: Bearer $mine
				200
				DELETE /v1/tokens/$id
				204
				GET /v1/apps/$app
				> authorization: Bearer $mine
				401`,
		},
		{
			says: "an identity token has every claim that is documented",
			do: `POST $machine/oidc_token {"aud": "https://example.com"}
				200 jwt {"app_id": "<text>", "app_name": "$app", "aud": "https://example.com", "exp": "<integer>", "iat": "<integer>", "image": "<text>",
					"image_digest": "~^sha256:", "iss": "<text>", "jti": "<text>", "machine_id": "$machine.id", "machine_name": "$machine.name",
					"machine_version": "$machine.instance", "nbf": "<integer>", "org_id": "<text>", "org_name": "personal", "region": "loc", "sub": "<text>"}`,
		},
		{
			says: "the subject of an identity token is organization, App and Machine",
			do: `POST $machine/oidc_token
				200 jwt {"sub": "personal:$app:$machine.name"}`,
		},
		{
			says: "aud is optional",
			do: `POST $machine/oidc_token
				200 jwt {"aud": "<text>"}`,
		},
		{
			says: "an identity token is valid for 15 minutes",
			do: `POST $machine/oidc_token
				200 jwt {"iat": "<integer as issued>", "nbf": "<integer as from>", "exp": "<integer as to>"}`,
			then: func(t *testing.T, x *exchange) {
				if x.integer("to")-x.integer("from") != 900 || x.integer("issued") != x.integer("from") {
					t.Errorf("issued at %s, valid from %s to %s", x.value("issued"), x.value("from"), x.value("to"))
				}
			},
		},
		{
			says: "each request makes a new identity token",
			do: `POST $machine/oidc_token
				200 jwt {"jti": "<text as one>"}
				POST $machine/oidc_token
				200 jwt {"jti": "<not $one>"}`,
		},
		{
			says: "the issuer ends with the organization and has the configuration for those who verify",
			do: `POST $machine/oidc_token
				200 jwt {"iss": "~^https://.*/personal$"}
				POST $machine/oidc_token
				200 jwt {"iss": "<text as issuer>"}
				GET $issuer/.well-known/openid-configuration
				200 {"issuer": "$issuer", "jwks_uri": "<text as keys>", "id_token_signing_alg_values_supported": ["RS256"]}
				GET $keys
				200 {"keys": ["<has>", {"kty": "RSA", "alg": "RS256", "use": "sig"}]}`,
		},
		{
			says: "the configuration of an issuer needs no token",
			do: `GET /oidc/personal/.well-known/openid-configuration
				> authorization:
				200 {"issuer": "~/personal$"}`,
		},
		{
			says: "a Machine that does not run gets no identity token",
			do: `POST $stopped/oidc_token
				412`,
		},
		{
			says: "another version is in the identity token after an update",
			do: `UPDATE $machine
				POST $machine/oidc_token
				200 jwt {"machine_version": "$version", "machine_id": "$machine.id"}`,
		},
		{
			says: "the scheme may be that of existing clients",
			do: `GET /v1/apps/$app
				> authorization: FlyV1 $token
				200`,
		},
		{
			says: "of several tokens with commas between them one suffices",
			do: `POST /v1/tokens {"kind": "org", "org_slug": "$org"}
				201 {"token": "<text as other>"}
				GET /v1/apps/$app
				> authorization: FlyV1 $other,$token
				200`,
		},
		{
			says: "the text of a token is answered once, and no list has it",
			do: `POST /v1/tokens {"kind": "org", "org_slug": "$org", "name": "of this row"}
				201 {"id": "<text as id>", "token": "<text>"}
				GET /v1/tokens?org_slug=$org
				200 {"tokens": [{"id": "$id", "name": "of this row", "kind": "org", "token": "<absent>"}]}`,
		},
		{
			says: "a token says what it is for",
			do: `POST /v1/tokens {"kind": "org", "org_slug": "$org"}
				201 {"id": "<text as id>", "token": "<text as mine>"}
				GET /v1/tokens/current
				> authorization: Bearer $mine
				200 {"tokens": [{"token_id": "$id", "org_slug": "$org"}]}`,
		},
		{
			says: "a token of an organization does not make others for another one",
			do: `POST /v1/tokens {"kind": "org", "org_slug": "$org"}
				201 {"token": "<text as mine>"}
				POST /v1/tokens {"kind": "org", "org_slug": "personal"}
				> authorization: Bearer $mine
				404`,
		},
		{
			says: "the kind of a token is one that there is",
			do: `POST /v1/tokens {"kind": "royal", "org_slug": "$org"}
				400 {"error": "~kind"}`,
		},
		{
			says: "a read-only token changes no volumes, metadata, leases or secrets",
			do: `POST /v1/tokens {"kind": "readonly", "org_slug": "personal"}
				201 {"token": "<text as mine>"}
				GET $volume
				> authorization: PlatformV1 $mine
				200
				PUT $volume {"snapshot_retention": 7}
				> authorization: PlatformV1 $mine
				403
				POST $prepared/metadata/role {"value": "front"}
				> authorization: PlatformV1 $mine
				403
				POST $prepared/lease {"ttl": 60}
				> authorization: PlatformV1 $mine
				403
				POST /v1/apps/$app/secrets {"values": {"A": "1"}}
				> authorization: PlatformV1 $mine
				403
				POST $prepared/exec {"command": ["true"]}
				> authorization: PlatformV1 $mine
				403`,
		},
		{
			says: "the API of metrics takes the tokens of both schemes, of its organization alone",
			do: `GIVEN $machine
				POST /v1/tokens {"kind": "readonly", "org_slug": "personal"}
				201 {"token": "<text as mine>"}
				GET /prometheus/personal/api/v1/labels
				> authorization: PlatformV1 $mine
				200 {"status": "success"}
				GET /prometheus/personal/api/v1/query?query=up
				> authorization: Bearer $mine
				200 {"status": "success"}
				POST /v1/tokens {"kind": "readonly", "org_slug": "$org"}
				201 {"token": "<text as other>"}
				GET /prometheus/personal/api/v1/labels
				> authorization: Bearer $other
				404`,
		},
		{
			says: "remote read of metrics is not supported",
			do: `POST /prometheus/personal/api/v1/read
				404`,
		},
		{
			says: "an identity token is plain text",
			do: `POST $machine/oidc_token {"aud": "a"}
				200 jwt {"aud": "a"}
				< content-type: ~^text/plain`,
		},
		{
			says: "third parties verify an identity token by the keys of its issuer",
			do: `POST $machine/oidc_token
				200 jwt {"iss": "<text as issuer>"}
				GET $issuer/.well-known/openid-configuration
				200 {"jwks_uri": "<text as keys>", "response_types_supported": ["<has>"], "subject_types_supported": ["<has>"]}`,
			then: verifies,
		},
		{
			says: "the audience of an identity token is the organization unless it is given",
			do: `POST $machine/oidc_token
				200 jwt {"aud": "~^https://.*/personal$"}`,
		},
		{
			says: "aud is a text",
			do: `POST $machine/oidc_token {"aud": 7}
				400 {"error": "~aud"}`,
		},
		{
			says: "an identity token has the image of its Machine, by name and digest",
			do: `GET $machine
				200 {"image_ref": {"digest": "<text as digest>"}}
				POST $machine/oidc_token
				200 jwt {"image": "~personal/web", "image_digest": "$digest"}`,
		},
		{
			says: "the app_id and org_id of an identity token are the numbers of the App and its organization",
			do: `GET /v1/apps/$app
				200 {"internal_numeric_id": "<integer as number>", "organization": {"internal_numeric_id": "<integer as org>"}}
				POST $machine/oidc_token
				200 jwt {"app_id": "$number", "org_id": "$org"}`,
		},
		{
			says: "a token is not valid any more when its time has passed",
			do: `POST /v1/apps/$app/deploy_token {"expiry": "1s"}
				200 {"token": "<text as mine>"}
				UNTIL /v1/apps/$app
				> authorization: Bearer $mine
				401 {"error": "<text>"}`,
		},
	}
}
