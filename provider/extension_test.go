package provider_test

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/hangar-platform/hangar/provider"
)

const provision = `{
	"name": "test", "id": "ext_1", "organization_id": "04La2mblTaz", "organization_name": "High Flyers",
	"user_email": "v9WvKokd@customer.example.com", "user_id": "NeBO2G0l0yJ6", "user_role": "admin",
	"primary_region": "mad", "ip_address": "fdaa:0:47fb:0:1::1d", "read_regions": ["syd", "scl"],
	"url": "https://logs.example.com/extensions", "nonce": "e3f7b4c8f5ea016d0d2e92048ca0d856", "timestamp": 1685641159,
	"later": true
}`

func TestProvision(t *testing.T) {
	var p provider.Provision
	if err := json.Unmarshal([]byte(provision), &p); err != nil {
		t.Fatal(err)
	}
	want := provider.Provision{
		Name: "test", ID: "ext_1", OrganizationID: "04La2mblTaz", OrganizationName: "High Flyers",
		UserID: "NeBO2G0l0yJ6", UserEmail: "v9WvKokd@customer.example.com", UserRole: provider.RoleAdmin,
		PrimaryRegion: "mad", ReadRegions: []string{"syd", "scl"}, IPAddress: netip.MustParseAddr("fdaa:0:47fb:0:1::1d"),
		URL: "https://logs.example.com/extensions", Nonce: "e3f7b4c8f5ea016d0d2e92048ca0d856", Timestamp: 1685641159,
	}
	if !reflect.DeepEqual(p, want) {
		t.Errorf("it is read as %+v", p)
	}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if got := p.Timestamp.Time().Format("2006-01-02 15:04:05 MST"); got != "2023-06-01 17:39:19 UTC" {
		t.Errorf("the timestamp is %s", got)
	}
	raw, err := json.Marshal(provider.Provision{Name: "a", UserRole: "member"})
	if want := `{"name":"a","id":"","organization_id":"","organization_name":"","user_id":"","user_email":"","user_role":"member"}`; err != nil || string(raw) != want {
		t.Errorf("without options it is written as %s, %v", raw, err)
	}

	for name, change := range map[string]func(*provider.Provision){
		"name":              func(p *provider.Provision) { p.Name = "" },
		"id":                func(p *provider.Provision) { p.ID = "" },
		"organization_id":   func(p *provider.Provision) { p.OrganizationID = "" },
		"organization_name": func(p *provider.Provision) { p.OrganizationName = "" },
		"user_id":           func(p *provider.Provision) { p.UserID = "" },
		"user_email":        func(p *provider.Provision) { p.UserEmail = "" },
		"user_role":         func(p *provider.Provision) { p.UserRole = "owner" },
		"IPv4":              func(p *provider.Provision) { p.IPAddress = netip.MustParseAddr("10.0.0.1") },
		"zone":              func(p *provider.Provision) { p.IPAddress = netip.MustParseAddr("fe80::1%eth0") },
	} {
		bad := want
		change(&bad)
		if bad.Validate() == nil {
			t.Errorf("valid with a wrong %s", name)
		}
	}
}

func TestProvisioned(t *testing.T) {
	for raw, want := range map[string]provider.Provisioned{
		`{"id":"1","config":{"LOGS_URL":"https://u:p@h"},"name":"logs-1","fly_app_name":"logs"}`: {
			ID: "1", Config: map[string]string{"LOGS_URL": "https://u:p@h"}, Name: "logs-1", PlatformAppName: "logs",
		},
		`{"id":"1","config":{},"platform_app_name":"a","fly_app_name":"b","more":[]}`: {
			ID: "1", Config: map[string]string{}, PlatformAppName: "a",
		},
	} {
		var p provider.Provisioned
		if err := json.Unmarshal([]byte(raw), &p); err != nil || !reflect.DeepEqual(p, want) || p.Validate() != nil {
			t.Errorf("%s is read as %+v, %v", raw, p, err)
		}
	}
	raw, err := json.Marshal(provider.Provisioned{ID: "1", Config: map[string]string{}, PlatformAppName: "a"})
	if err != nil || string(raw) != `{"id":"1","config":{},"platform_app_name":"a"}` {
		t.Errorf("it is written as %s, %v", raw, err)
	}
	for _, bad := range []string{`{"config":{}}`, `{"id":"1"}`, `{"id":"1","config":null}`, `{}`, `null`} {
		var p provider.Provisioned
		if err := json.Unmarshal([]byte(bad), &p); err != nil || p.Validate() == nil {
			t.Errorf("%s is valid, or not read: %v", bad, err)
		}
	}
	for _, bad := range []string{`{"id":1,"config":{}}`, `{"id":"1","config":{"PORT":5432}}`, `[]`} {
		if json.Unmarshal([]byte(bad), new(provider.Provisioned)) == nil {
			t.Errorf("%s is read", bad)
		}
	}
}

func TestResourceKeepsWhatItDoesNotKnow(t *testing.T) {
	for _, raw := range []string{
		`{}`,
		`{"id":"1"}`,
		`{"ID":"of another","id":"1","name":"n","organization_id":"o","plan":"pro","status":"ready","usage":{"bytes":12345678901234567890},"user_id":"u"}`,
	} {
		var r provider.Resource
		if err := json.Unmarshal([]byte(raw), &r); err != nil {
			t.Fatal(err)
		}
		again, err := json.Marshal(r)
		if err != nil || string(again) != raw {
			t.Errorf("%s is written as %s, %v", raw, again, err)
		}
	}
	r := provider.Resource{ID: "1", Status: provider.StatusSleeping, Extra: map[string]json.RawMessage{"id": []byte(`"2"`), "plan": []byte(`"x"`), "region": []byte(`"ams"`)}}
	if raw, err := json.Marshal(&r); err != nil || string(raw) != `{"id":"1","region":"ams","status":"sleeping"}` {
		t.Errorf("fields and Extra are written as %s, %v", raw, err)
	}
	for _, bad := range []string{`null`, `[]`, `{"id":1}`, `{"status":{}}`} {
		kept := provider.Resource{ID: "kept"}
		if kept.UnmarshalJSON([]byte(bad)) == nil || kept.ID != "kept" {
			t.Errorf("%s is read as %+v", bad, kept)
		}
	}
}

func TestTimestamp(t *testing.T) {
	for raw, want := range map[string]provider.Timestamp{`1693513586`: 1693513586, `"1693513586"`: 1693513586, `0`: 0, `null`: 7} {
		got := provider.Timestamp(7)
		if err := json.Unmarshal([]byte(raw), &got); err != nil || got != want {
			t.Errorf("%s is read as %d, %v", raw, got, err)
		}
	}
	for _, bad := range []string{`-1`, `1.5`, `1e9`, `""`, `" 1"`, `"0x10"`, `"1_0"`, `true`, `{}`, `9223372036854775808`, `"`} {
		var got provider.Timestamp
		if err := json.Unmarshal([]byte(bad), &got); err == nil {
			t.Errorf("%s is read as %d", bad, got)
		}
	}
	if raw, err := json.Marshal(provider.Timestamp(1693513586)); err != nil || string(raw) != "1693513586" {
		t.Errorf("it is written as %s, %v", raw, err)
	}
}
