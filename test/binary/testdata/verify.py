"""Verifies identity tokens with PyJWT, as a third party would.

Reads one JSON object per line: issuer, audience and token. Answers each with one:
the claims, or the name of the error.
"""

import json
import sys
import urllib.request

import jwt


def verify(issuer, audience, token):
    with urllib.request.urlopen(issuer + "/.well-known/openid-configuration") as answer:
        found = json.load(answer)
    if found["issuer"] != issuer:
        raise jwt.InvalidIssuerError(found["issuer"])
    key = jwt.PyJWKClient(found["jwks_uri"]).get_signing_key_from_jwt(token)
    return jwt.decode(
        token,
        key.key,
        algorithms=found["id_token_signing_alg_values_supported"],
        audience=audience,
        issuer=issuer,
        options={"require": ["exp", "iat", "nbf", "aud", "iss", "sub", "jti"]},
    )


for line in sys.stdin:
    try:
        result = {"claims": verify(**json.loads(line))}
    except jwt.PyJWTError as error:
        result = {"error": type(error).__name__ + ": " + str(error)}
    print(json.dumps(result), flush=True)
