"""A third party that signs users in with requests-oauthlib.

It prints where the browser has to go, reads where the browser came back to, and prints what it has learnt.
"""
import json
import os
import sys

from requests_oauthlib import OAuth2Session

auth, redirect_uri, organization = sys.argv[1:]
os.environ["OAUTHLIB_INSECURE_TRANSPORT"] = "1"  # the test has no TLS

session = OAuth2Session("logs", redirect_uri=redirect_uri, scope=["read"])
url, state = session.authorization_url(auth + "/oauth/authorize", organization_id=organization)
print(url, flush=True)
token = session.fetch_token(auth + "/oauth/token", authorization_response=input(), client_secret="logs secret")
first = session.get(auth + "/oauth/token/info")
first.raise_for_status()
refreshed = session.refresh_token(auth + "/oauth/token", auth=("logs", "logs secret"))
second = session.get(auth + "/oauth/token/info")
second.raise_for_status()
ended = session.post(auth + "/oauth/revoke", data={"token": refreshed["refresh_token"]}, auth=("logs", "logs secret"), withhold_token=True)
ended.raise_for_status()
after = session.get(auth + "/oauth/token/info")
print(json.dumps({
    "user": first.json()["user_id"], "again": second.json()["user_id"], "organizations": second.json()["organizations"],
    "same": token["access_token"] == refreshed["access_token"], "after": after.status_code,
}))
