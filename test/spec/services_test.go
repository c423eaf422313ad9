package spec_test

import (
	"crypto/tls"
	"testing"
)

// web runs a Machine with a service of the row's App, which has a public address; the service has
// more properties, and the port 80 or what else is said. $id is its id.
func web(service string) string {
	return `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
		200
		POST /v1/apps/$app/machines {"config": {"image": "$image", "services": [{"internal_port": 8080, ` + service + `}]}}
		200 {"id": "<text as id>"}
		GET /v1/apps/$app/machines/$id/wait
		200
		`
}

const plain = `"ports": [{"port": 80, "handlers": ["http"]}]`

// slow has the web server of a Machine not answer /cgi-bin/slow; /in exists after such a request.
const slow = `"files": [{"guest_path": "/www/cgi-bin/slow", "raw_value": "IyEvYmluL3NoCmVjaG8gPi9pbgpzbGVlcCAxMDAwCg==", "mode": 493}]`

// recorder is a program that keeps what it is sent in /got and answers it with an empty page.
const recorder = `"init": {"exec": ["sh", "-c", "while :; do printf 'HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n' | nc -l -p 8080 >>/got; done"]}`

// recording is the config of a Machine whose service is the recorder.
const recording = recorder + `, "services": [{"internal_port": 8080, ` + plain + `}]`

// serving is the config of a Machine of which the program call is the server; see there. Its port
// has more properties.
func serving(port string) string {
	return `"init": {"exec": ["call", "serve"]}, "services": [{"internal_port": 8080, "ports": [{"port": 80, "handlers": ["http"], ` + port + `}]}]`
}

// recorded gives the row's App an address, and its Machine.
const recorded = `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
	200
	GIVEN $machine
	`

// proxied is the config of a recorder behind the handler proxy_proto at the port 7201.
func proxied(options string) string {
	return recorder + `, "services": [{"internal_port": 8080, "ports": [{"port": 7201, "handlers": ["proxy_proto"], ` + options + `}]}]`
}

// proxyLine asks a Machine that is proxied for a page.
const proxyLine = `POST /v1/apps/$app/ip_assignments {"type": "v4"}
	200 {"ip": "<text as address>"}
	GIVEN $machine
	UNTIL http://$address:7201/
	200
	`

func serviceRows() []row {
	return []row{
		{
			says: "an App with an address answers under its name below the platform's domain",
			do: web(plain) + `UNTIL http://$app.hangar.localhost/
				200 ~^$id\n$`,
		},
		{
			says: "an App without an address is closed to the internet",
			do: web(plain) + `UNTIL http://$app.hangar.localhost/
				200
				DELETE /v1/apps/$app/ip_assignments/127.0.0.1
				204
				UNTIL http://$app.hangar.localhost/
				404`,
		},
		{
			says: "a Machine without services is closed to the internet",
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				GIVEN $machine
				GET http://$app.hangar.localhost/
				404 ~no service`,
		},
		{
			says: "with the handlers tls and http a port serves HTTPS",
			do: web(`"ports": [{"port": 443, "handlers": ["tls", "http"]}]`) + `UNTIL https://$app.hangar.localhost/
				200 ~^$id\n$`,
		},
		{
			says: "force_https redirects from HTTP to HTTPS",
			do: web(`"ports": [{"port": 80, "handlers": ["http"], "force_https": true}, {"port": 443, "handlers": ["tls", "http"]}]`) + `UNTIL http://$app.hangar.localhost/a?b=c
				301
				< location: ~^https://$app.hangar.localhost(:\d+)?/a\?b=c$`,
		},
		{
			says: "an answer has the platform's headers",
			do: web(plain) + `UNTIL http://$app.hangar.localhost/
				200
				< server: hangar
				< via: ~hangar
				< platform-request-id: ~.+
				< platform-cache-status: MISS`,
		},
		{
			says: "a pristine answer has none of the platform's headers",
			do: web(`"ports": [{"port": 80, "handlers": ["http"], "http_options": {"response": {"pristine": true}}}]`) + `UNTIL http://$app.hangar.localhost/
				200 ~^$id
				< server:
				< via:
				< fly-request-id:
				< platform-request-id:
				< platform-cache-status:`,
		},
		{
			says: "headers of http_options are set on answers",
			do: web(`"ports": [{"port": 80, "handlers": ["http"], "http_options": {"response": {"headers": {"x-spec": "yes"}}}}]`) + `UNTIL http://$app.hangar.localhost/
				200
				< x-spec: yes`,
		},
		{
			says: "compress compresses answers",
			do: web(`"ports": [{"port": 80, "handlers": ["http"], "http_options": {"compress": true}}]`) + `UNTIL http://$app.hangar.localhost/
				200
				EXEC /v1/apps/$app/machines/$id ["sh", "-c", "mkdir -p /www; echo aaaaaaaaaa >/www/a.txt; for i in 1 2 3 4 5 6 7 8 9; do cat /www/a.txt /www/a.txt >/www/b.txt; cat /www/b.txt >/www/a.txt; done"]
				UNTIL http://$app.hangar.localhost/a.txt
				> accept-encoding: gzip
				200
				< content-encoding: gzip`,
		},
		{
			says: "without compress answers are as the Machine sends them",
			do: web(plain) + `UNTIL http://$app.hangar.localhost/
				> accept-encoding: gzip
				200
				< content-encoding:`,
		},
		{
			says: "with autostart a stopped Machine is started by a request",
			do: web(`"autostart": true, `+plain) + `STOP /v1/apps/$app/machines/$id {"timeout": "1"}
				UNTIL http://$app.hangar.localhost/
				200 ~^$id
				GET /v1/apps/$app/machines/$id
				200 {"state": "started", "events": ["<has>", {"type": "start", "source": "proxy"}]}`,
		},
		{
			says: "with autostart a suspended Machine is resumed by a request",
			do: web(`"autostart": true, `+plain) + `SUSPEND /v1/apps/$app/machines/$id
				UNTIL http://$app.hangar.localhost/
				200 ~^$id
				GET /v1/apps/$app/machines/$id
				200 {"state": "started"}`,
		},
		{
			says: "with autostop stop an idle Machine is stopped",
			do: web(`"autostart": true, "autostop": "stop", `+plain) + `GET /v1/apps/$app/machines/$id/wait?state=stopped
				200
				GET /v1/apps/$app/machines/$id
				200 {"events": ["<has>", {"type": "stop", "source": "proxy"}]}`,
		},
		{
			says: "with autostop suspend an idle Machine is suspended",
			do: web(`"autostart": true, "autostop": "suspend", `+plain) + `GET /v1/apps/$app/machines/$id/wait?state=suspended
				200`,
		},
		{
			says: "with autostop suspend an idle Machine that cannot be suspended is stopped",
			with: `"init": {"swap_size_mb": 256},
					"services": [{"internal_port": 8080, "autostart": true, "autostop": "suspend", ` + plain + `}]`,
			do: `GET $created/wait?state=stopped
				200`,
		},
		{
			says: "with autostop off an idle Machine goes on",
			do: web(`"autostart": true, "autostop": "off", `+plain) + `GET /v1/apps/$app/machines/$id/wait?state=stopped&timeout=4
				408`,
		},
		{
			says: "min_machines_running keeps as many Machines from being stopped for being idle",
			do: web(`"autostart": true, "autostop": "stop", "min_machines_running": 1, `+plain) + `
				POST /v1/apps/$app/machines {"config": {"image": "$image", "services": [{"internal_port": 8080, "autostart": true, "autostop": "stop", "min_machines_running": 1, ` + plain + `}]}}
				200
				UNTIL /v1/apps/$app/machines
				200 ["<has>", {"state": "stopped"}, {"state": "started", "id": "<text as kept>"}]
				GET /v1/apps/$app/machines/$kept/wait?state=stopped&timeout=4
				408`,
		},
		{
			says: "a service without an HTTP handler passes bytes of an address of the App's own",
			with: `"services": [{"internal_port": 8080, "ports": [{"port": 7001}, {"port": 7002, "handlers": ["tcp"]}]}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "v4"}
				200 {"ip": "<text as address>", "shared": false}
				GIVEN $machine
				UNTIL http://$address:7001/
				200 ~^$machine.id
				< via:
				UNTIL http://$address:7002/
				200 ~^$machine.id`,
		},
		{
			says: "a range of ports is served",
			with: `"services": [{"internal_port": 8080, "ports": [{"start_port": 7100, "end_port": 7102}]}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "v4"}
				200 {"ip": "<text as address>"}
				GIVEN $machine
				UNTIL http://$address:7100/
				200 ~^$machine.id
				UNTIL http://$address:7102/
				200 ~^$machine.id`,
		},
		{
			says: "a Machine has another App answer by a header of its answer",
			do: web(plain) + `POST /v1/apps/$app2/machines {"config": {"image": "$image", "env": {"OTHER": "$app"}, "services": [{"internal_port": 8080, ` + plain + `}],
					"init": {"exec": ["sh", "-c", "while :; do printf 'HTTP/1.1 200 OK\\r\\nplatform-replay: app='$OTHER'\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n' | nc -l -p 8080; done"]}}}
				200 {"id": "<text as other>"}
				POST /v1/apps/$app2/ip_assignments {"type": "shared_v4"}
				200
				GET /v1/apps/$app2/machines/$other/wait
				200
				UNTIL http://$app2.hangar.localhost/
				200 ~^$id`,
		},
		{
			says: "a cordoned Machine gets no requests, and gets them again when it is uncordoned",
			do: web(plain) + `UNTIL http://$app.hangar.localhost/
				200
				POST /v1/apps/$app/machines/$id/cordon
				200
				UNTIL http://$app.hangar.localhost/
				503
				POST /v1/apps/$app/machines/$id/uncordon
				200
				UNTIL http://$app.hangar.localhost/
				200 ~^$id`,
		},
		{
			says: "several Machines with the same config share the requests",
			do: web(plain) + `POST /v1/apps/$app/machines {"config": {"image": "$image", "services": [{"internal_port": 8080, ` + plain + `}]}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				UNTIL http://$app.hangar.localhost/
				200 ~^$id
				UNTIL http://$app.hangar.localhost/
				200 ~^$other
				UNTIL http://$app.hangar.localhost/
				200 ~^$id`,
		},
		{
			says: "with mixed configs requests go to the Machines whose service has the port",
			do: web(plain) + `POST /v1/apps/$app/machines {"config": {"image": "$image", "services": [{"internal_port": 8080, "ports": [{"port": 443, "handlers": ["tls", "http"]}]}]}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				UNTIL https://$app.hangar.localhost/
				200 ~^$other
				GET http://$app.hangar.localhost/
				200 ~^$id
				GET http://$app.hangar.localhost/
				200 ~^$id
				GET http://$app.hangar.localhost/
				200 ~^$id
				GET https://$app.hangar.localhost/
				200 ~^$other`,
		},
		{
			says: "files of statics are served without the program",
			with: `"files": [{"guest_path": "/public/page.txt", "raw_value": "c3RhdGlj"}],
					"statics": [{"guest_path": "/public", "url_prefix": "/static"}], "services": [{"internal_port": 8080, ` + plain + `}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				GIVEN $machine
				UNTIL http://$app.hangar.localhost/static/page.txt
				200 ~^static$`,
		},
		{
			says: "a check that passes, and one that does not, are in the Machine's checks",
			with: `"checks": {
					"good": {"type": "http", "port": 8080, "path": "/", "interval": 1000000000},
					"open": {"type": "tcp", "port": 8080, "interval": 1000000000},
					"bad": {"type": "http", "port": 8080, "path": "/nothing", "interval": 1000000000},
					"closed": {"type": "tcp", "port": 81, "interval": 1000000000}}`,
			do: `UNTIL $created
				200 {"checks": ["<has>", {"name": "good", "status": "passing"}, {"name": "open", "status": "passing"},
					{"name": "bad", "status": "critical", "output": "~404"}, {"name": "closed", "status": "critical", "output": "~refused"}]}`,
		},
		{
			says: "a service without ports is closed to the internet",
			with: `"services": [{"internal_port": 8080}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				GIVEN $machine
				GET http://$app.hangar.localhost/
				404 ~no service`,
		},
		{
			says: "the only Machine of an App is started by a request, if its service does not say otherwise",
			do: web(plain) + `STOP /v1/apps/$app/machines/$id {"timeout": "1"}
				UNTIL http://$app.hangar.localhost/
				200 ~^$id
				GET /v1/apps/$app/machines/$id
				200 {"state": "started", "events": ["<has>", {"type": "start", "source": "proxy"}]}`,
		},
		{
			says:    "autostart is false unless it is given",
			differs: "without `autostart` a request starts the Machine while it is the only one of its App, as the table of states says, and with `false` never",
			do: web(plain) + `POST /v1/apps/$app/machines {"config": {"image": "$image"}, "skip_launch": true}
				200
				STOP /v1/apps/$app/machines/$id {"timeout": "1"}
				UNTIL http://$app.hangar.localhost/
				503
				GET /v1/apps/$app/machines/$id
				200 {"state": "stopped"}`,
		},
		{
			says: "with autostart false no request starts a Machine",
			do: web(`"autostart": false, `+plain) + `STOP /v1/apps/$app/machines/$id {"timeout": "1"}
				UNTIL http://$app.hangar.localhost/
				503
				GET /v1/apps/$app/machines/$id
				200 {"state": "stopped"}`,
		},
		{
			says: "without autostop an idle Machine goes on",
			do: web(`"autostart": true, `+plain) + `GET /v1/apps/$app/machines/$id/wait?state=stopped&timeout=4
				408`,
		},
		{
			says: "a cordoned Machine is not started by a request",
			do: web(`"autostart": true, `+plain) + `STOP /v1/apps/$app/machines/$id {"timeout": "1"}
				POST /v1/apps/$app/machines/$id/cordon
				200
				UNTIL http://$app.hangar.localhost/
				503
				GET /v1/apps/$app/machines/$id
				200 {"state": "stopped"}`,
		},
		{
			says: "a Machine that was created with skip_service_registration gets no requests until it is uncordoned",
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				POST /v1/apps/$app/machines {"config": {"image": "$image", "services": [{"internal_port": 8080, ` + plain + `}]}, "skip_service_registration": true}
				200 {"id": "<text as id>"}
				GET /v1/apps/$app/machines/$id/wait
				200
				GET http://$app.hangar.localhost/
				503
				POST /v1/apps/$app/machines/$id/uncordon
				200
				UNTIL http://$app.hangar.localhost/
				200 ~^$id`,
		},
		{
			says: "with the handler tls alone a port serves what the program sends",
			do: web(`"ports": [{"port": 443, "handlers": ["tls"]}]`) + `UNTIL https://$app.hangar.localhost/
				200 ~^$id\n$
				< via:
				< platform-request-id:`,
		},
		{
			says: "a request has the headers of the platform when it reaches the program",
			with: recording,
			do: recorded + `UNTIL http://$app.hangar.localhost/page
				> x-mine: yes
				200
				POST $machine/exec {"command": ["sh", "-c", "until [ -s /got ]; do sleep 0.05; done; cat /got"]}
				200 {"stdout": "~(?ism)^GET /page HTTP/1.1.*fly-client-ip: .*fly-request-id: .*x-forwarded-for: .*x-mine: yes"}`,
		},
		{
			says: "with the handler proxy_proto a connection begins with a line of version 1",
			with: proxied(`"proxy_proto_options": {}`),
			do: proxyLine + `POST $machine/exec {"command": ["sh", "-c", "until [ -s /got ]; do sleep 0.05; done; cat /got"]}
				200 {"stdout": "~^PROXY TCP4 "}`,
		},
		{
			says: "proxy_proto_options.version v2 begins it with the signature of version 2",
			with: proxied(`"proxy_proto_options": {"version": "v2"}`),
			do: proxyLine + `POST $machine/exec {"command": ["sh", "-c", "until [ -s /got ]; do sleep 0.05; done; cat /got"]}
				200 {"stdout": "~^\\r\\n\\r\\n\\x00\\r\\nQUIT\\n"}`,
		},
		{
			says: "a Machine has an App in another network answer by a header of its answer",
			do: `POST /v1/apps {"app_name": "$new", "org_slug": "personal", "network": "apart"}
				201
				POST /v1/apps/$new/machines {"config": {"image": "$image", "services": [{"internal_port": 8080, ` + plain + `}]}}
				200 {"id": "<text as id>"}
				GET /v1/apps/$new/machines/$id/wait
				200
				POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				POST /v1/apps/$app/machines {"config": {"image": "$image", "env": {"OTHER": "$new"}, "services": [{"internal_port": 8080, ` + plain + `}],
					"init": {"exec": ["sh", "-c", "while :; do printf 'HTTP/1.1 200 OK\\r\\nplatform-replay: app='$OTHER'\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n' | nc -l -p 8080; done"]}}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				UNTIL http://$app.hangar.localhost/
				200 ~^$id
				DELETE /v1/apps/$new
				202`,
		},
		{
			says: "a check by HTTP sends its method, path and headers",
			with: recording + `, "checks": {"alive": {"type": "http", "port": 8080, "method": "POST", "path": "/ok", "interval": 1000000000, "headers": {"X-Mine": ["yes"]}}}`,
			do: `UNTIL $machine
				200 {"checks": [{"name": "alive", "status": "passing"}]}
				POST $machine/exec {"command": ["sh", "-c", "until [ -s /got ]; do sleep 0.05; done; cat /got"]}
				200 {"stdout": "~(?ism)^POST /ok HTTP/1.1.*x-mine: yes"}`,
		},
		{
			says: "a check that is not answered within its timeout fails",
			with: slow + `, "checks": {"alive": {"type": "http", "port": 8080, "path": "/cgi-bin/slow", "interval": 10000000000, "timeout": 100000000}}`,
			do: `UNTIL $created
				200 {"checks": [{"name": "alive", "status": "critical", "output": "no answer from port 8080 within 100ms"}]}`,
		},
		{
			says: "a check does not begin before its grace_period has passed",
			with: `"checks": {"now": {"type": "tcp", "port": 81, "interval": 1000000000},
					"later": {"type": "tcp", "port": 81, "interval": 1000000000, "grace_period": 3600000000000}}`,
			do: `UNTIL $created
				200 {"checks": ["<has>", {"name": "now", "status": "critical"}, {"name": "later", "status": "warning"}]}`,
		},
		{
			says: "a Machine whose service's check fails gets no requests",
			with: `"services": [{"internal_port": 8080, "checks": [{"type": "http", "path": "/ready", "interval": 1000000000}], ` + plain + `}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				UNTIL $created
				200 {"checks": [{"name": "servicecheck-00-http-8080", "status": "critical"}]}
				EXEC $created ["sh", "-c", "mkdir -p /www; echo yes >/www/ready"]
				UNTIL $created
				200 {"checks": [{"status": "passing"}]}
				UNTIL http://$app.hangar.localhost/
				200 ~^$created.id`,
		},
		{
			says: "at its hard_limit a Machine gets no more requests, and another one is started for them",
			with: slow + `, "services": [{"internal_port": 8080, "autostart": true, "concurrency": {"type": "requests", "hard_limit": 1}, ` + plain + `}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				STOP $machine2 {"timeout": "1"}
				GIVEN $machine
				UNTIL http://$app.hangar.localhost/
				200 ~^$machine.id`,
			then: func(t *testing.T, x *exchange) {
				withOpenRequest(t, x, `GET http://$app.hangar.localhost/
					200 ~^$machine2.id
					GET $machine2
					200 {"state": "started", "events": ["<has>", {"type": "start", "source": "proxy"}]}`)
			},
		},
		{
			says: "a pristine answer has the headers that the program sends, as it sends them",
			with: `"init": {"exec": ["sh", "-c", "while :; do printf 'HTTP/1.1 200 OK\\r\\nServer: mine\\r\\nVia: 1.1 mine\\r\\nFly-Request-Id: mine\\r\\nFly-Cache-Status: HIT\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n' | nc -l -p 8080; done"]},
					"services": [{"internal_port": 8080, "ports": [{"port": 80, "handlers": ["http"], "http_options": {"response": {"pristine": true}}}]}]`,
			do: recorded + `UNTIL http://$app.hangar.localhost/
				200
				< server: mine
				< via: 1.1 mine
				< fly-request-id: mine
				< fly-cache-status: HIT`,
		},
		{
			says: "without hard_limit a Machine gets requests beyond its soft_limit when there is no other",
			with: slow + `, "services": [{"internal_port": 8080, "concurrency": {"type": "requests", "soft_limit": 1}, ` + plain + `}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				GIVEN $machine
				UNTIL http://$app.hangar.localhost/
				200 ~^$machine.id`,
			then: func(t *testing.T, x *exchange) {
				withOpenRequest(t, x, `GET http://$app.hangar.localhost/
					200 ~^$machine.id`)
			},
		},
		{
			says: "beyond its soft_limit a Machine gets no request that another one can take",
			with: slow + `, "services": [{"internal_port": 8080, "concurrency": {"type": "requests", "soft_limit": 1}, ` + plain + `}]`,
			do: `POST /v1/apps/$app/ip_assignments {"type": "shared_v4"}
				200
				POST $machine2/cordon
				200
				GIVEN $machine
				UNTIL http://$app.hangar.localhost/
				200 ~^$machine.id`,
			then: func(t *testing.T, x *exchange) {
				withOpenRequest(t, x, `POST $machine2/uncordon
					200
					UNTIL http://$app.hangar.localhost/
					200 ~^$machine2.id
					GET http://$app.hangar.localhost/
					200 ~^$machine2.id
					GET http://$app.hangar.localhost/
					200 ~^$machine2.id`)
			},
		},
		{
			says: "with h2_backend the program is spoken to in HTTP/2, and without it in HTTP/1.1",
			with: serving(`"http_options": {"h2_backend": true}`),
			do: recorded + `UNTIL http://$app.hangar.localhost/
				200 ~^HTTP/2.0$
				POST /v1/apps/$app2/ip_assignments {"type": "shared_v4"}
				200
				POST /v1/apps/$app2/machines {"config": {"image": "$image", ` + serving(`"force_https": false`) + `}}
				200
				UNTIL http://$app2.hangar.localhost/
				200 ~^HTTP/1.1$`,
		},
		{
			says: "a check by HTTPS verifies the certificate unless tls_skip_verify says otherwise",
			with: serving(`"force_https": false`) + `, "checks": {
					"lax": {"type": "http", "port": 8443, "path": "/", "protocol": "https", "tls_skip_verify": true, "interval": 1000000000},
					"strict": {"type": "http", "port": 8443, "path": "/", "protocol": "https", "tls_server_name": "machine.example", "interval": 1000000000}}`,
			do: `UNTIL $machine
				200 {"checks": ["<has>", {"name": "lax", "status": "passing"}, {"name": "strict", "status": "critical", "output": "~certificate"}]}`,
		},
		{
			says: "tls_options.versions are those that the port speaks",
			do: web(`"ports": [{"port": 443, "handlers": ["tls", "http"], "tls_options": {"versions": ["TLSv1.3"]}}]`) + `UNTIL https://$app.hangar.localhost/
				200 ~^$id`,
			then: func(t *testing.T, x *exchange) {
				if err := x.handshake(tls.VersionTLS12); err == nil {
					t.Error("the port speaks TLS 1.2")
				}
				if err := x.handshake(tls.VersionTLS13); err != nil {
					t.Error(err)
				}
			},
		},
		{
			says: "a header of http_options that is false is removed from answers",
			do: web(`"ports": [{"port": 80, "handlers": ["http"], "http_options": {"response": {"headers": {"last-modified": false, "x-many": ["1", "2"]}}}}]`) + `UNTIL http://$app.hangar.localhost/
				200
				< last-modified:
				< x-many: 1`,
		},
		{
			says: "a request may ask for one Machine by a header, under both spellings",
			do: web(plain) + `POST /v1/apps/$app/machines {"config": {"image": "$image", "services": [{"internal_port": 8080, ` + plain + `}]}}
				200 {"id": "<text as other>"}
				GET /v1/apps/$app/machines/$other/wait
				200
				UNTIL http://$app.hangar.localhost/
				> fly-force-instance-id: $other
				200 ~^$other
				UNTIL http://$app.hangar.localhost/
				> platform-force-instance-id: $id
				200 ~^$id
				GET http://$app.hangar.localhost/
				> fly-force-instance-id: 00000000000000
				404`,
		},
	}
}
