"""The seller: a person at the marketplace's pages, whose browser keeps a session and a passkey."""

import hashlib
import json
import secrets
import urllib.parse

import requests
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from interop import base64url

USER_PRESENT, USER_VERIFIED, ATTESTED = 0x01, 0x04, 0x40


class Passkey:
    """What `navigator.credentials` answers, with one passkey whose holder always agrees."""

    def __init__(self, origin):
        self.origin = origin
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.id = secrets.token_bytes(16)

    def create(self, options):
        assert -7 in [each["alg"] for each in options["pubKeyCredParams"]], options
        self.rp_id, self.holder = options["rp"]["id"], options["user"]["id"]
        numbers = self.key.public_key().public_numbers()
        x, y = (getattr(numbers, name).to_bytes(32, "big") for name in "xy")
        # COSE: {1: 2, 3: -7, -1: 1, -2: x, -3: y}
        cose = b"\xa5\x01\x02\x03\x26\x20\x01\x21\x58\x20" + x + b"\x22\x58\x20" + y
        attested = bytes(16) + len(self.id).to_bytes(2, "big") + self.id + cose
        data = self.data(USER_PRESENT | USER_VERIFIED | ATTESTED) + attested
        # CBOR: {"fmt": "none", "attStmt": {}, "authData": data}
        statement = b"\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x58" + bytes([len(data)]) + data
        client_data = self.client_data("webauthn.create", options["challenge"])
        return self.credential(clientDataJSON=client_data, attestationObject=statement)

    def get(self, options):
        assert options["rpId"] == self.rp_id, options
        client_data = self.client_data("webauthn.get", options["challenge"])
        data = self.data(USER_PRESENT | USER_VERIFIED)
        signature = self.key.sign(data + hashlib.sha256(client_data).digest(), ec.ECDSA(hashes.SHA256()))
        credential = self.credential(clientDataJSON=client_data, authenticatorData=data, signature=signature)
        credential["response"]["userHandle"] = self.holder
        return credential

    def client_data(self, kind, challenge):
        said = {"type": kind, "challenge": challenge, "origin": self.origin, "crossOrigin": False}
        return json.dumps(said).encode()

    def data(self, flags):
        """The authenticator's data; it counts no signatures."""
        return hashlib.sha256(self.rp_id.encode()).digest() + bytes([flags]) + bytes(4)

    def credential(self, **response):
        about = {"id": base64url(self.id), "rawId": base64url(self.id), "type": "public-key"}
        response = {name: base64url(value) for name, value in response.items()}
        return about | {"clientExtensionResults": {}, "response": response}


def marketplace(gateway, path, body):
    """What the marketplace itself does."""
    secret = {"Authorization": f"Bearer {gateway.world['secret']}"}
    answer = requests.post(f"{gateway.url}/dev/{path}", json=body, headers=secret)
    assert answer.status_code == 201, (path, answer.status_code, answer.text)
    return answer.json()


def new_listing(gateway):
    """A listing that is on sale."""
    return marketplace(gateway, "listings", {"floor": {"amount": 45_000, "currency": "EUR"}})["listing_id"]


class Seller:
    """What the scripts of the pages do between one click and the next."""

    def __init__(self, gateway):
        """The marketplace sends a link, at which the seller makes a passkey."""
        link = marketplace(gateway, "enrolments", {})["url"]
        self.origin, ticket = link.split("/enroll#ticket=")
        self.browser = requests.Session()
        self.passkey = Passkey(self.origin)
        offered = self.post("/enroll/options", {"ticket": ticket})
        credential = self.passkey.create(offered["publicKey"])
        self.post("/enroll/complete", {"ticket": ticket, "state": offered["state"], "credential": credential})

    def sign_in(self):
        offered = self.post("/signin/options", {})
        credential = self.passkey.get(offered["publicKey"])
        self.post("/signin/complete", {"state": offered["state"], "credential": credential})

    def consent(self, url, lowered):
        """Follows an application's link, signs in, and allows what it asks for, but for what is `lowered`. Answers what the
        page shows, and where it sends the browser."""
        self.browser = requests.Session()
        page = self.browser.get(url, allow_redirects=False)
        assert page.status_code == 200, (page.status_code, page.headers)
        assert url.startswith(f"{self.origin}/"), url
        query = urllib.parse.urlsplit(url).query
        asked = self.browser.get(f"{self.origin}/oauth/consent?{query}")
        assert (asked.status_code, asked.json()["error"]) == (401, "unauthenticated"), asked.text
        self.sign_in()
        asked = self.get(f"/oauth/consent?{query}")
        tiers = {each["scope"]: each["tier"] for each in asked["scopes"]} | lowered
        decided = {"query": query, "decision": "allow", "tiers": tiers, "expires_in_days": 7}
        return asked, self.post("/oauth/consent", decided)["redirect"]

    def approve(self, approval_id):
        options = self.post(f"/approve/{approval_id}/options", {})
        credential = self.passkey.get(options["publicKey"])
        self.post(f"/approvals/{approval_id}/response", {"decision": "approve", "credential": credential})

    def revoke(self, agent_id):
        (grant,) = [each for each in self.get("/grants/list")["grants"] if each["agent_id"] == agent_id]
        self.post(f"/grants/{grant['grant_id']}/revoke", {})

    def get(self, path):
        return self.answer(self.browser.get(self.origin + path))

    def post(self, path, body):
        # Browsers add the `Origin`, and no page of another site could.
        return self.answer(self.browser.post(self.origin + path, json=body, headers={"Origin": self.origin}))

    def answer(self, response):
        assert response.ok, (response.request.url, response.status_code, response.text)
        return response.json() if response.content else None
