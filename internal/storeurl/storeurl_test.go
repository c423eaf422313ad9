package storeurl

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for raw, want := range map[string]Place{
		"file:///srv/backup/":            {Dir: "/srv/backup"},
		"s3://b":                         {Bucket: "b", Endpoint: "s3.us-east-1.amazonaws.com", Region: "us-east-1", TLS: true},
		"s3://b/a//b/":                   {Bucket: "b", Prefix: "a/b/", Endpoint: "s3.us-east-1.amazonaws.com", Region: "us-east-1", TLS: true},
		"s3://b/x?region=eu&tls=on":      {Bucket: "b", Prefix: "x/", Endpoint: "s3.eu.amazonaws.com", Region: "eu", TLS: true},
		"s3://b?endpoint=h:9000&tls=off": {Bucket: "b", Endpoint: "h:9000", Region: "us-east-1"},
	} {
		got, err := Parse(raw)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", raw, got, err)
		}
		if again, err := Parse(got.String()); err != nil || again.Dir != got.Dir || again.Prefix != got.Prefix {
			t.Errorf("%s: %+v, %v", got, again, err)
		}
	}
	for raw, text := range map[string]string{
		"ftp://x":                     "must be file or s3",
		"/srv":                        "must be file or s3",
		"file://srv/x":                "absolute path",
		"file:///":                    "absolute path",
		"file:///x?a=b":               "no parameters",
		"s3:///x":                     "bucket is missing",
		"s3://u:secret@b":             "come from the environment",
		"s3://b#x":                    "nothing may follow",
		"s3://b?x=1":                  "is unknown",
		"s3://b?tls=1":                "must be on or off",
		"s3://b?region=a&region=b":    "given twice",
		"s3://b?endpoint=http://host": "must be host",
		"s3://b?a=%zz":                "parameters",
		"s3://u:secret@b:port/":       "port",
	} {
		if _, err := Parse(raw); err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", raw, err)
		}
	}
}
