package hangar_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/hangar-platform/hangar"
)

// edgeConfig is a config with a service that has one public port with some properties.
func edgeConfig(port string) string {
	return `{"image":"a","services":[{"internal_port":8080,"ports":[{"port":443,` + port + `}]}]}`
}

func staticsConfig(statics string) string { return `{"image":"a","statics":[` + statics + `]}` }

// validated parses and validates a config as a client sends it.
func validated(config string) error {
	c, err := hangar.ParseMachineConfig([]byte(config))
	if err != nil {
		return err
	}
	return c.Validate()
}

func TestConfigsThatTheEdgeCanServe(t *testing.T) {
	for _, config := range []string{
		edgeConfig(`"handlers":["tls","http"],"force_https":true`),
		edgeConfig(`"handlers":["http","tls"]`), // one order makes sense
		edgeConfig(`"handlers":["edge_http"],"force_https":true`),
		edgeConfig(`"handlers":["tcp"]`),
		edgeConfig(`"handlers":["tls","tls","proxy_proto"]`),
		edgeConfig(`"handlers":["pg_tls"]`),
		edgeConfig(`"handlers":["pg_tls","proxy_proto"],"proxy_proto_options":{"version":"2"}`),
		edgeConfig(`"handlers":null`),
		edgeConfig(`"handlers":[],"tls_options":{},"http_options":{},"proxy_proto_options":{}`),
		edgeConfig(`"handlers":["tls"],"tls_options":{"alpn":["h2","http/1.1","my-protocol"],"versions":["TLSv1.2","TLSv1.3"],"default_self_signed":true}`),
		edgeConfig(`"http_options":{"idle_timeout":0,"headers_read_timeout":3600}`),
		edgeConfig(`"http_options":{"response":{"headers":{"X-A":"b","X-List":["a","ä","\t"],"Server":false,"X-Empty":""},"pristine":true}}`),
		edgeConfig(`"http_options":{"replay_cache":[{"path_prefix":"/","ttl_seconds":10,"type":"cookie","name":"session"},{"path_prefix":"/api","ttl_seconds":86400,"type":"header","name":"X-Tenant","allow_bypass":true}]}`),
		`{"image":"a","services":[{"internal_port":53,"protocol":"udp","ports":[{"port":53},{"port":54,"handlers":["tls"],"force_https":true}]}]}`,
		`{"image":"a","services":[{"internal_port":1,"ports":[{"start_port":10000,"end_port":20000}]}]}`,
		`{"image":"a","services":[{"internal_port":1,"autostop_after":"1s"},{"internal_port":2,"autostop_after":"24h"},{"internal_port":3,"autostop_after":300000000000}]}`,
		staticsConfig(`{"guest_path":"/app/public","url_prefix":"/public"},{"guest_path":"/app/public/","url_prefix":"/public/deep/"},{"guest_path":"/","url_prefix":"/"}`),
		staticsConfig(`{"guest_path":"/","url_prefix":"/","tigris_bucket":"my.site-1","index_document":"index.html"}`),
		staticsConfig(`{"guest_path":"www","url_prefix":"/a","tigris_bucket":"site"}`),
	} {
		if err := validated(config); err != nil {
			t.Errorf("%s: %v", config, err)
		}
	}
}

func TestConfigsThatTheEdgeCannotServe(t *testing.T) {
	port := "config.services[0].ports[0]"
	for _, test := range []struct{ config, at, rule string }{
		{edgeConfig(`"handlers":["tls"],"force_https":true`), port + ".force_https", "handler"},
		{edgeConfig(`"force_https":true`), port + ".force_https", "handler"},
		{edgeConfig(`"handlers":["pg_tls","tls"]`), port + ".handlers", "neither"},
		{edgeConfig(`"handlers":["pg_tls","http"]`), port + ".handlers", "neither"},
		{edgeConfig(`"tls_options":{"versions":["TLSv1.1"]}`), port + ".tls_options.versions[0]", "TLSv1.2"},
		{edgeConfig(`"tls_options":{"alpn":["h2",""]}`), port + ".tls_options.alpn[1]", "printable"},
		{edgeConfig(`"tls_options":{"alpn":[` + strings.Repeat(`"a",`, 16) + `"a"]}`), port + ".tls_options.alpn", "more than the 16"},
		{edgeConfig(`"proxy_proto_options":{"version":"v3"}`), port + ".proxy_proto_options.version", `"v1" or "v2"`},
		{edgeConfig(`"http_options":{"idle_timeout":604801}`), port + ".http_options.idle_timeout", "more than"},
		{edgeConfig(`"http_options":{"headers_read_timeout":3601}`), port + ".http_options.headers_read_timeout", "more than"},
		{edgeConfig(`"http_options":{"response":{"headers":{"X-A":true}}}`), port + ".http_options.response.headers.X-A", "false"},
		{edgeConfig(`"http_options":{"response":{"headers":{"X-A":7}}}`), port + ".http_options.response.headers.X-A", "a list of texts"},
		{edgeConfig(`"http_options":{"response":{"headers":{"X-A":null}}}`), port + ".http_options.response.headers.X-A", "a list of texts"},
		{edgeConfig(`"http_options":{"response":{"headers":{"X-A":["b",7]}}}`), port + ".http_options.response.headers.X-A[1]", "text"},
		{edgeConfig(`"http_options":{"response":{"headers":{"X-A":"b\r\nSet-Cookie: c"}}}`), port + ".http_options.response.headers.X-A", "control"},
		{edgeConfig(`"http_options":{"response":{"headers":{"X A":"b"}}}`), port + ".http_options.response.headers", "no header's"},
		{edgeConfig(`"http_options":{"response":{"headers":{"":"b"}}}`), port + ".http_options.response.headers", "no header's"},
		{edgeConfig(`"http_options":{"response":{"headers":{"content-length":"1"}}}`), port + ".http_options.response.headers.content-length", "edge's own"},
		{edgeConfig(`"http_options":{"replay_cache":[{"path_prefix":"a","ttl_seconds":10,"type":"cookie","name":"s"}]}`), port + ".http_options.replay_cache[0].path_prefix", "slash"},
		{edgeConfig(`"http_options":{"replay_cache":[{"path_prefix":"/","ttl_seconds":9,"type":"cookie","name":"s"}]}`), port + ".http_options.replay_cache[0].ttl_seconds", "less than 10"},
		{edgeConfig(`"http_options":{"replay_cache":[{"path_prefix":"/","ttl_seconds":10,"type":"query","name":"s"}]}`), port + ".http_options.replay_cache[0].type", "cookie"},
		{edgeConfig(`"http_options":{"replay_cache":[{"path_prefix":"/","ttl_seconds":10,"type":"cookie","name":"s="}]}`), port + ".http_options.replay_cache[0].name", "name"},
		{`{"image":"a","services":[{"internal_port":1,"ports":[{"start_port":1,"end_port":16384}]},{"internal_port":2,"ports":[{"port":20000}]}]}`, "config.services[1].ports", "16385"},
		{`{"image":"a","services":[{"internal_port":1,"autostop_after":"999ms"}]}`, "config.services[0].autostop_after", "1s"},
		{`{"image":"a","services":[{"internal_port":1,"autostop_after":"25h"}]}`, "config.services[0].autostop_after", "24h"},
		{staticsConfig(`{"guest_path":"app","url_prefix":"/a"}`), "config.statics[0].guest_path", "absolute"},
		{staticsConfig(`{"guest_path":"/app/../etc","url_prefix":"/a"}`), "config.statics[0].guest_path", "upwards"},
		{staticsConfig(`{"guest_path":"/app\u0000","url_prefix":"/a"}`), "config.statics[0].guest_path", "control"},
		{staticsConfig(`{"guest_path":"/app","url_prefix":"a"}`), "config.statics[0].url_prefix", "slash"},
		{staticsConfig(`{"guest_path":"/app","url_prefix":"/a/../b"}`), "config.statics[0].url_prefix", "plain"},
		{staticsConfig(`{"guest_path":"/app","url_prefix":"/a*"}`), "config.statics[0].url_prefix", "plain"},
		{staticsConfig(`{"guest_path":"/app","url_prefix":"/a%20b"}`), "config.statics[0].url_prefix", "plain"},
		{staticsConfig(`{"guest_path":"/x","url_prefix":"/a"},{"guest_path":"/y","url_prefix":"/a/"}`), "config.statics[1].url_prefix", "config.statics[0]"},
		{staticsConfig(`{"guest_path":"/x","url_prefix":"/a","index_document":"index.html"}`), "config.statics[0].index_document", "bucket"},
		{staticsConfig(`{"guest_path":"/x","url_prefix":"/a","tigris_bucket":"site","index_document":"../x"}`), "config.statics[0].index_document", "name of a file"},
		{staticsConfig(`{"guest_path":"/x","url_prefix":"/a","tigris_bucket":"Site"}`), "config.statics[0].tigris_bucket", "bucket"},
		{staticsConfig(`{"guest_path":"/x","url_prefix":"/a","tigris_bucket":"a/../b"}`), "config.statics[0].tigris_bucket", "bucket"},
		{staticsConfig(manyStatics(11)), "config.statics", "more than the 10"},
	} {
		err := validated(test.config)
		if hangar.CodeOf(err) != hangar.CodeInvalid || !strings.HasPrefix(err.Error(), "invalid "+test.at+": ") || !strings.Contains(err.Error(), test.rule) {
			t.Errorf("%s: %v, want %s: %s", test.config, err, test.at, test.rule)
		}
	}
}

func manyStatics(n int) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(`{"guest_path":"/x","url_prefix":"/%d"}`, i)
	}
	return strings.Join(list, ",")
}

// TestMountIsEchoed: clients can read whether a volume is encrypted, also when it is not.
func TestMountIsEchoed(t *testing.T) {
	c := hangar.MachineConfig{Mounts: []hangar.Mount{{Volume: "vol_0000000000000001", Path: "/data", Encrypted: true}}}
	c.DescribeMount(&hangar.Volume{ID: "vol_0000000000000001", Name: "data", SizeGB: 1})
	if raw, err := json.Marshal(c); err != nil || !strings.Contains(string(raw), `"encrypted":false`) {
		t.Errorf("%s, %v", raw, err)
	}
}
