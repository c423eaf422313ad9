package provider

import (
	"errors"
	"net/url"
	"strings"
)

// absolute reports whether a URL can be the target of a signed request.
func absolute(u *url.URL) bool {
	return (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.Opaque == ""
}

// origin returns the scheme and host of a URL.
func origin(u *url.URL) string { return u.Scheme + "://" + strings.ToLower(u.Host) }

// target returns the value of the parameter url: the prefix, the escaped path of u, and
// the query if there is one.
func target(prefix string, u *url.URL, query string) string {
	path := u.EscapedPath()
	if path == "" {
		path = "/" // as HTTP sends an empty path
	}
	if query != "" {
		query = "?" + query
	}
	return prefix + path + query
}

// checkQuery accepts the characters of a query in RFC 3986, section 3.4, without the semicolon, which
// some parsers treat as a separator. A JSON object has other characters, so no signed body is a valid query.
func checkQuery(query string) error {
	for _, c := range []byte(query) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._~!$&'()*+,=:@/?%", c) >= 0:
		default:
			return errors.New("the query has a character that must be percent-encoded")
		}
	}
	return nil
}

// pairName decodes the name of one parameter of a query. A name that cannot be decoded is "".
func pairName(pair string) string {
	name, _, _ := strings.Cut(pair, "=")
	name, err := url.QueryUnescape(name)
	if err != nil {
		return ""
	}
	return name
}
