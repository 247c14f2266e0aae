"""What schemathesis needs to get past the door: each request is signed, or carries a token, as one of the agents of the
development world, and most of the ids in it are of things that are there."""

import atexit
import base64
import collections
import hashlib
import json
import os
import random
import secrets
import time
from urllib.parse import urlsplit

import requests
import schemathesis
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

with open(os.environ["RCTP_WORLD"], encoding="utf-8") as file:
    WORLD = json.load(file)
AGENTS = ("listings", "offers", "deals", "account", "approvals")
PAGES = ("approve", "enroll", "signin", "signout")
chance = random.Random(9421)


def base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Agent:
    def __init__(self, name: str):
        agent = WORLD["agents"][name]
        self.profile = agent["profile"]
        self.key = serialization.load_pem_private_key(agent["key"].encode(), None)
        point = self.key.public_key().public_numbers()
        x, y = (base64url(n.to_bytes(32, "big")) for n in (point.x, point.y))
        # RFC 7638.
        jwk = f'{{"crv":"P-256","kty":"EC","x":"{x}","y":"{y}"}}'
        self.kid = base64url(hashlib.sha256(jwk.encode()).digest())

    def sign(self, request: requests.PreparedRequest) -> None:
        """Binding 2.1, over the bytes that are sent."""
        headers = request.headers
        headers["UCP-Agent"] = f'profile="{self.profile}"'
        url = urlsplit(request.url)
        components = {
            '"@method"': request.method,
            '"@authority"': url.netloc.lower(),
            '"@path"': url.path or "/",
            '"ucp-agent"': headers["UCP-Agent"],
        }
        if url.query:
            components['"@query"'] = f"?{url.query}"
        if request.method == "POST":
            components['"idempotency-key"'] = headers["Idempotency-Key"]
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        headers.pop("Content-Digest", None)
        if body:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            headers["Content-Digest"] = f"sha-256=:{digest}:"
            components['"content-digest"'] = headers["Content-Digest"]
            if "Content-Type" in headers:
                components['"content-type"'] = headers["Content-Type"].strip()
        if "Authorization" in headers:
            components['"authorization"'] = headers["Authorization"]
        now = int(time.time())
        signed = f'({" ".join(components)});created={now};expires={now + 60};keyid="{self.kid}"'
        lines = [f"{name}: {value}" for name, value in components.items()]
        base = "\n".join([*lines, f'"@signature-params": {signed}'])
        r, s = decode_dss_signature(self.key.sign(base.encode(), ec.ECDSA(hashes.SHA256())))
        raw = base64.b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode()
        headers["Signature-Input"] = f"sig1={signed}"
        headers["Signature"] = f"sig1=:{raw}:"


BUYER, SELLER = Agent("buyer"), Agent("seller")


class Door(requests.auth.AuthBase):
    """One of the agents, or nobody; what was generated in place of a signature or a token goes."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        first = urlsplit(request.url).path.split("/")[1]
        if first in PAGES or request.url.split("?")[0].endswith("/response"):
            for name in ("Signature", "Signature-Input", "UCP-Agent"):
                request.headers.pop(name, None)
            if chance.random() < 0.8:
                request.headers["Origin"] = WORLD["url"].replace("127.0.0.1", "localhost")
            return request
        if first not in AGENTS or chance.random() < 0.1:
            return request
        for name in ("Authorization", "Signature", "Signature-Input"):
            request.headers.pop(name, None)
        # A repeat with a key that was generated before is answered from the store, or is a conflict.
        if request.method == "POST" and chance.random() < 0.9:
            request.headers["Idempotency-Key"] = secrets.token_urlsafe(24)
        if chance.random() < 0.9:
            request.headers.pop("RCTP-Version", None)
        if request.method == "POST" and "Idempotency-Key" not in request.headers:
            return request
        agents = ["buyer", "buyer", "auto", "ask", "unsigned"]
        if first in ("offers", "deals") and request.url.rsplit("/", 1)[-1] in ("accept", "counter", "commit-to-ship"):
            agents += ["auto"] * 4
        who = chance.choice(agents)
        if who == "buyer":
            BUYER.sign(request)
            return request
        request.headers["Authorization"] = f"Bearer {WORLD['grants'][who]['access_token']}"
        if who == "unsigned":
            request.headers.pop("UCP-Agent", None)
        else:
            SELLER.sign(request)
        return request


schemathesis.auth.set_from_requests(Door())

# ---- What is there ----------------------------------------------------------------------------------------------------

KNOWN = {"listing_id": [WORLD["listing_id"]]}
KINDS = {"listings": "listing_id", "offers": "offer_id", "deals": "deal_id", "approvals": "approval_id", "approve": "approval_id"}


def fresh() -> None:
    """Another listing on sale: the one before is reserved or sold by now, or its budget is spent."""
    listing = {"floor": {"amount": 45_000, "currency": "EUR"}, "list_price": {"amount": 60_000, "currency": "EUR"}}
    answer = requests.post(
        f"{WORLD['url']}/dev/listings", json=listing, headers={"Authorization": f"Bearer {WORLD['secret']}"}, timeout=10
    )
    answer.raise_for_status()
    WORLD["listing_id"] = answer.json()["listing_id"]


def known(kind: str):
    # What is new is in a state in which more can be done.
    values = KNOWN.get(kind, [])[-6:]
    if kind == "listing_id" and chance.random() < 0.7:
        # The others are drafts, on which little can be done.
        return WORLD["listing_id"]
    return chance.choice(values) if values else None


def learn(value) -> None:
    if isinstance(value, dict):
        for name, member in value.items():
            if isinstance(member, str) and (name.endswith("_id") or name == "checkout"):
                values = KNOWN.setdefault(name, [])
                if member not in values:
                    values.append(member)
            learn(member)
    elif isinstance(value, list):
        for item in value:
            learn(item)


@schemathesis.hook
def before_call(context, case, kwargs):
    kind = KINDS.get(case.path.split("/")[1])
    if chance.random() < 0.01:
        fresh()
    if "id" in (case.path_parameters or {}) and kind and chance.random() < 0.8:
        case.path_parameters["id"] = known(kind) or case.path_parameters["id"]
    if isinstance(case.query, dict) and "listing_id" in case.query and chance.random() < 0.8:
        case.query["listing_id"] = known("listing_id")
    body = case.body
    if not isinstance(body, dict) or chance.random() < 0.2:
        return
    for name in ("listing_id", "question_id", "checkout"):
        if name in body:
            body[name] = known(name) or body[name]
    if "supersedes" in body:
        body["supersedes"] = known("offer_id") or body["supersedes"]
        if chance.random() < 0.9:
            del body["supersedes"]
    terms = body.get("deal_terms")
    if isinstance(terms, dict):
        # What the listings of the development world offer.
        terms["fulfillment"] = {"method_type": "shipping", "selected_option_id": "standard"}
        terms["payment"] = {"selected_term_id": "prepaid"}
        terms["price"] = {"amount": chance.choice([1_000, 50_000, 58_000]), "currency": "EUR"}
        if chance.random() < 0.8:
            body.pop("expires_at", None)
    if "term_set" in body:
        body["term_set"] = "goods-1"
    if isinstance(body.get("price"), dict):
        body["price"] = {"amount": chance.choice([1_000, 60_000]), "currency": "EUR"}


# How often each operation was answered with each status: what only ever sees the door proves nothing.
TALLY = collections.defaultdict(collections.Counter)


@atexit.register
def tell():
    with open(os.environ["RCTP_TALLY"], "w", encoding="utf-8") as file:
        json.dump(TALLY, file)


@schemathesis.hook
def after_call(context, case, response):
    TALLY[case.operation.definition.raw.get("operationId")][response.status_code] += 1
    if response.status_code < 300 and "json" in response.headers.get("content-type", [""])[0]:
        try:
            learn(response.json())
        except ValueError:
            pass  # the checks say so
