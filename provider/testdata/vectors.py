"""Prints the vectors of vectors.json: signed requests, by an implementation that shares nothing with package provider."""

import base64
import hashlib
import hmac
import json
import urllib.parse

NOW = 1685641159
NONCE = "e3f7b4c8f5ea016d0d2e92048ca0d856"

SIGNATURES = [
    # RFC 4231, section 4.3
    ("RFC 4231, test case 2", "Jefe", "what do ya want for nothing?"),
    ("empty message", "secret", ""),
    ("secret that is not ASCII", "schlüssel-🔑", '{"name":"größe"}'),
    ("secret longer than a block", "0123456789abcdef" * 8, "message"),
    ("secret that looks like hexadecimal", "00ff00ff", "message"),
]

REQUESTS = [
    ("provision", "POST", "https://logs.example.com/extensions", '{"name":"shop-logs","id":"ext_1","organization_id":"17"}'),
    ("empty object", "POST", "https://logs.example.com/hangar/extensions/events", "{}"),
    ("spaces are kept", "PATCH", "https://logs.example.com/extensions/432cb1c9", '{ "name" : "größe & <more>" ,\n "read_regions": ["syd"] }'),
    ("query of a POST", "POST", "https://logs.example.com:8443/extensions?a=1&b=%20", '{"name":"x"}'),
    ("get", "GET", "https://logs.example.com/extensions/432cb1c9", None),
    ("get with a query", "GET", "https://logs.example.com/extensions/432cb1c9?detail=usage&from=2026-01-01", None),
    ("escaped path", "DELETE", "https://logs.example.com/extensions/a%2Fb", None),
]


def signature(secret, message):
    return hmac.new(secret.encode(), message.encode(), hashlib.sha256)


def sign(method, target, body):
    if method in ("POST", "PATCH"):
        body = body.strip()
        added = '"url":%s,"nonce":"%s","timestamp":%d}' % (json.dumps(target), NONCE, NOW)
        body = body[:-1] + ("," if json.loads(body) else "") + added
        return target, body, body
    added = urllib.parse.urlencode({"nonce": NONCE, "timestamp": NOW, "url": target})
    signed = target + ("&" if "?" in target else "?") + added
    return signed, None, signed.split("?", 1)[1]


def main():
    signatures = []
    for name, secret, message in SIGNATURES:
        digest = signature(secret, message).digest()
        signatures.append({"name": name, "secret": secret, "message": message, "hex": digest.hex(), "base64": base64.b64encode(digest).decode()})
    requests = []
    for name, method, target, body in REQUESTS:
        signed_url, signed_body, message = sign(method, target, body)
        requests.append({
            "name": name, "method": method, "url": target, "body": body, "secret": "shared secret", "now": NOW, "nonce": NONCE,
            "signed_url": signed_url, "signed_body": signed_body, "signature": signature("shared secret", message).hexdigest(),
        })
    print(json.dumps({"signatures": signatures, "requests": requests}, indent=2, ensure_ascii=False))


main()
