"""MCP with the official client on the other side: see ./run."""

import asyncio
import contextlib
import datetime
import json
import logging
import pathlib
import secrets
import sys
import urllib.parse
import warnings

import httpx2
import interop
import jwt
from cryptography.hazmat.primitives import serialization
from mcp import Client, MCPError
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from seller import Seller, new_listing

# The two eras of MCP, as the client's modes.
ERAS = {"auto": "2026-07-28", "legacy": "2025-11-25"}


class Storage:
    """Where an application keeps what it has of OAuth."""

    def __init__(self, client_info=None):
        self.client_info, self.tokens = client_info, None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client_info

    async def set_client_info(self, _):
        raise AssertionError("it registers nowhere")


def endpoint(gateway):
    """Where the profile says that MCP is served; the protected resource has that name, and no other."""
    (url,) = [each["endpoint"] for each in gateway.profile["ucp"]["services"]["dev.rctp"] if each["transport"] == "mcp"]
    return url


@contextlib.asynccontextmanager
async def connected(gateway, auth, mode):
    """The client, and what it has asked over HTTP."""
    asked = []

    async def hear(response):
        asked.append((response.request.method, response.request.url.path, response.status_code))

    hooks = {"response": [hear]}
    async with (
        httpx2.AsyncClient(auth=auth, trust_env=False, event_hooks=hooks) as http,
        Client(streamable_http_client(endpoint(gateway), http_client=http), mode=mode) as client,
    ):
        expect(client.protocol_version, ERAS[mode])
        yield client, asked


def expect(found, wanted):
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def keyed(arguments):
    """Arguments of a tool that writes."""
    return arguments | {"meta": {"idempotency-key": secrets.token_urlsafe(24)}}


async def names(client):
    return [tool.name for tool in (await client.list_tools()).tools]


async def decided(client, tool, arguments):
    """The decision on a call, and its result; the client holds both against the tool's output schema."""
    answer = await client.call_tool(tool, arguments)
    expect((answer.is_error, set(answer.structured_content)), (False, {"decision", "result"}))
    return answer.structured_content["decision"], answer.structured_content["result"]


async def done(client, tool, arguments):
    decision, result = await decided(client, tool, arguments)
    expect(decision, {"decision": "auto"})
    return result


async def refused(client, tool, arguments, code):
    """Answers the decision, where there is one."""
    try:
        answer = await client.call_tool(tool, arguments)
    except MCPError as error:
        expect((error.code, error.data["code"], error.data["message"]), (-32000, code, error.message))
        return error.data.get("decision")
    raise AssertionError(f"{tool} was answered: {answer}")


def an_offer(gateway, listing):
    return keyed(json.loads(interop.offer(gateway)) | {"listing_id": listing})


# What the client does with nothing but the URL: from the 401 to the metadata of the resource (RFC 9728), from there to that
# of the authorization server (RFC 8414), to a token.
FOUND = [
    ("POST", "/mcp", 401),
    ("GET", "/.well-known/oauth-protected-resource/mcp", 200),
    ("GET", "/.well-known/oauth-authorization-server", 200),
    ("POST", "/oauth/token", 200),
    ("POST", "/mcp", 200),
]


async def a_buyer_needs_the_url_and_its_credentials(gateway, mode, listing):
    """Answers two offers."""
    agent = gateway.world["agents"]["buyer"]
    credentials = {name: agent[name] for name in ["client_id", "client_secret"]}
    auth = ClientCredentialsOAuthProvider(endpoint(gateway), Storage(), **credentials)
    async with connected(gateway, auth, mode) as (client, asked):
        expect(asked[: len(FOUND)], FOUND)
        said(client, "a buyer's client finds the authorization server by itself, with its URL and credentials")

        expect(await names(client), ["create_offer", "get_offer", "decline_offer", "get_deal_events"])
        arguments = an_offer(gateway, listing)
        made = await done(client, "create_offer", arguments)
        expect((made["listing_id"], made["by"], made["state"]), (listing, "buyer", "open"))
        expect(made["deal_terms"], arguments["deal_terms"])
        expect(await done(client, "create_offer", arguments), made)
        other = await done(client, "create_offer", an_offer(gateway, listing))
        assert other["offer_id"] != made["offer_id"], other
        expect(await done(client, "get_offer", {"offer_id": made["offer_id"]}), made)
        expect(await refused(client, "get_offer", {"offer_id": "off_none"}, "not_found"), None)
        expect([path for _, path, _ in asked].count("/oauth/token"), 1)
        said(client, "it lists, offers, repeats with the same key and gets the same offer, reads, and is told what is not there")
        return [made["offer_id"], other["offer_id"]]


# What is asked of the seller, by scope.
TIERS = {
    "dev.rctp.deal:deal_commit_to_ship": "auto",
    "dev.rctp.deal:offer_accept": "auto",
    "dev.rctp.deal:offer_counter": "auto",
    "dev.rctp.listing:listing_answer_buyer": "auto",
    "dev.rctp.listing:listing_create": "auto",
    "dev.rctp.listing:listing_reprice": "auto",
    "dev.rctp.listing:listing_set_terms": "ask",
}
# What the seller makes of it.
LOWERED = {"dev.rctp.deal:offer_accept": "ask", "dev.rctp.deal:offer_counter": "forbid"}


def query(url):
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(url).query, strict_parsing=True))


class Application:
    """A seller's application: what it adds to the client's code flow."""

    def __init__(self, gateway, seller, agent_id):
        self.seller, self.agent_id, self.consents = seller, agent_id, 0
        agent = gateway.world["agents"]["seller"]
        # Nobody listens there: the browser hands over where it is sent.
        about = {"redirect_uris": ["http://127.0.0.1:1/callback"], "token_endpoint_auth_method": "client_secret_basic"}
        credentials = {name: agent[name] for name in ["client_id", "client_secret"]}
        self.storage = Storage(OAuthClientInformationFull(**about, **credentials))
        metadata = OAuthClientMetadata(**about)
        self.auth = OAuthClientProvider(endpoint(gateway), metadata, self.storage, self.redirect, self.callback)

    async def redirect(self, url):
        asked = query(url)
        expect((asked["response_type"], asked["code_challenge_method"]), ("code", "S256"))
        # As the 401 said. The details, which the client knows nothing of, have to be of the same scopes.
        expect(asked["scope"].split(" "), list(TIERS))
        details = [{"type": "dev.rctp.agent_grant", "agent_id": self.agent_id, "tiers": TIERS}]
        url += "&" + urllib.parse.urlencode({"authorization_details": json.dumps(details)})
        shown, self.came_back = self.seller.consent(url, LOWERED)
        expect((shown["client"]["client_id"], shown["client"]["signs"]), ("seller-agent", False))
        expect((shown["agent_id"], shown["redirect_host"]), (self.agent_id, "127.0.0.1"))
        expect({each["scope"]: each["tier"] for each in shown["scopes"]}, TIERS)
        self.consents += 1

    async def callback(self):
        return AuthorizationCodeResult(**query(self.came_back))

    def token_runs_out(self):
        self.auth.context.token_expiry_time = 1


async def a_seller_consents(gateway, seller, mode, offers):
    application = Application(gateway, seller, f"helper-{mode}")
    declined, accepted = ({"offer_id": offer} for offer in offers)
    async with connected(gateway, application.auth, mode) as (client, asked):
        expect((asked[: len(FOUND)], application.consents), (FOUND, 1))
        granted = [scope for scope in TIERS if LOWERED.get(scope) != "forbid"]
        expect(application.storage.tokens.scope.split(" "), granted)
        said(client, "a seller's client has its code flow end in a grant, signed in by passkey and lowered by the seller")

        tools = ["create_listing", "set_listing_terms", "reprice_listing", "answer_buyer", "get_offer", "accept_offer"]
        tools += ["decline_offer", "get_approval", "get_deal_events", "commit_to_ship"]
        expect(await names(client), tools)
        expect((await done(client, "decline_offer", keyed(declined)))["state"], "declined")

        decision, asks = await decided(client, "accept_offer", keyed(accepted))
        about = {"approval_id": decision["approval_id"]}
        expect(decision, about | {"decision": "ask", "expires_in": 900, "on_timeout": "deny"})
        request = asks["approval_request"]
        expect((request["approval_id"], request["action"]), (about["approval_id"], "offer.accept"))
        expect(request["hosted_url"], f"{seller.origin}/approve/{about['approval_id']}")
        pending = await done(client, "get_approval", about)
        expect((pending["approval_id"], pending["status"]), (about["approval_id"], "pending"))
        expect((await done(client, "get_offer", accepted))["state"], "awaiting_approval")
        seller.approve(about["approval_id"])
        approved = await done(client, "get_approval", about)
        expect((approved["status"], approved["decision"]), ("approved", {"decision": "auto"}))
        expect((approved["result"]["offer_id"], approved["result"]["state"]), (accepted["offer_id"], "accepted"))
        said(client, "it lists what the grant allows, declines, and accepts once the seller has approved")

        before = application.storage.tokens
        application.token_runs_out()
        asked.clear()
        await done(client, "get_offer", declined)
        expect(asked, [("POST", "/oauth/token", 200), ("POST", "/mcp", 200)])
        after = application.storage.tokens
        assert after.access_token != before.access_token and after.refresh_token != before.refresh_token
        expect((after.scope, application.consents), (before.scope, 1))
        said(client, "it refreshes")

        seller.revoke(application.agent_id)
        asked.clear()
        for tool, arguments in {"get_offer": declined, "decline_offer": keyed(declined)}.items():
            decision = await refused(client, tool, arguments, "grant_revoked")
            expect((decision["decision"], decision["reason"]), ("forbid", "grant_revoked"))
        # Under 200, so that nobody is asked for another grant behind the application's back.
        expect((asked, application.consents), ([("POST", "/mcp", 200)] * 2, 1))
        said(client, "it is told that the seller has revoked the grant")

        application.token_runs_out()
        asked.clear()
        await done(client, "get_offer", declined)
        expect((asked, application.consents), ([("POST", "/oauth/token", 400), *FOUND], 2))
        said(client, "once the token has run out it asks the seller anew")


class Signed(httpx2.Auth):
    """Signs each POST as binding 2.1 asks, with http-message-signatures."""

    requires_request_body = True

    def __init__(self, profile, key, token=None):
        self.profile, self.key, self.token = profile, key, token
        self.as_usual()

    def as_usual(self):
        self.age, self.left_out, self.alter = 0, set(), lambda body: body

    def auth_flow(self, request):
        request.headers["UCP-Agent"] = f'profile="{self.profile}"'
        components = ["@method", "@authority", "@path", "ucp-agent", "content-type"]
        if self.token:
            request.headers["Authorization"] = f"Bearer {self.token}"
            components.append("authorization")
        components = [name for name in components if name not in self.left_out]
        message = interop.Message(request.method, str(request.url), request.headers)
        keyid = interop.jwk_of(self.key)["kid"]
        interop.sign(message, self.key, keyid, components, request.content, age=self.age)
        for name in ["Content-Digest", "Signature-Input", "Signature"]:
            request.headers[name] = message.headers[name]
        request.stream = httpx2.ByteStream(self.alter(request.content))
        yield request


def known(gateway, name, token=None):
    """An agent of the gateway's world, which signs."""
    agent = gateway.world["agents"][name]
    return Signed(agent["profile"], serialization.load_pem_private_key(agent["key"].encode(), None), token)


def funds_held(holder, deal_id):
    """The event that the holder of funds reports, signed (binding 8.1)."""
    event = {
        "deal_id": deal_id,
        "event_id": f"evt_{secrets.token_urlsafe(24)}",
        "event": "funds_held",
        "occurred_at": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "observation": "first_hand",
    }
    header = {"typ": "rctp-deal-event+jwt", "kid": interop.jwk_of(holder.key)["kid"]}
    return event, jwt.encode(event, holder.key, algorithm="ES256", headers=header)


async def all_may_sign(gateway, operator, mode, listing):
    buyer, holder = Signed(operator.profile, operator.key), known(gateway, "funds_holder")
    seller = known(gateway, "seller", gateway.world["grants"]["auto"]["access_token"])
    async with (
        connected(gateway, buyer, mode) as (buys, asked),
        connected(gateway, seller, mode) as (sells, asked_by_seller),
        connected(gateway, holder, mode) as (holds, _),
    ):
        tools = ["create_offer", "get_offer", "decline_offer", "create_deal", "post_deal_event", "get_deal_events"]
        expect(await names(buys), tools)
        tools = ["create_listing", "set_listing_terms", "reprice_listing", "answer_buyer", "get_offer", "counter_offer"]
        tools += ["accept_offer", "decline_offer", "get_approval", "post_deal_event", "get_deal_events", "commit_to_ship"]
        expect(await names(sells), tools)

        offer = {"offer_id": (await done(buys, "create_offer", an_offer(gateway, listing)))["offer_id"]}
        expect((await done(sells, "accept_offer", keyed(offer)))["state"], "accepted")
        checkout = {"checkout": (await done(buys, "get_offer", offer))["checkout"]}
        deal = await done(buys, "create_deal", keyed(checkout))
        expect((deal["offer_id"], deal["status"]), (offer["offer_id"], "open"))
        expect(deal["buyer_jkt"], operator.jwk["kid"])
        decision = await refused(buys, "create_deal", keyed(checkout), "offer_replayed")
        expect((decision["decision"], decision["reason"]), ("forbid", "offer_replayed"))
        about = {"deal_id": deal["deal_id"]}
        event, token = funds_held(holder, deal["deal_id"])
        recorded = await done(holds, "post_deal_event", keyed(about | {"event": token}))
        expect((recorded["event_id"], recorded["event"], recorded["counts"]), (event["event_id"], "funds_held", True))
        told = [entry["operation"] for entry in (await done(buys, "get_deal_events", about))["entries"]]
        expect(told, ["create_deal", "post_deal_event"])
        said(buys, "signed by http-message-signatures, an offer is accepted, its checkout redeemed once, and the funds held")

        invalid = {"decision": "forbid", "reason": "signature_invalid"}
        asked.clear()
        buyer.alter = lambda body: body.replace(b'"amount":60000', b'"amount":60001')
        decision = await refused(buys, "create_offer", an_offer(gateway, listing), "signature_invalid")
        expect(decision, invalid | {"action": "offer.create"})
        buyer.as_usual()
        buyer.age = 120
        expect(await refused(buys, "get_offer", offer, "signature_invalid"), invalid)
        buyer.as_usual()
        expect(asked, [("POST", "/mcp", 401)] * 2)
        asked_by_seller.clear()
        seller.left_out = {"authorization"}
        expect(await refused(sells, "get_offer", offer, "signature_invalid"), invalid)
        expect(asked_by_seller, [("POST", "/mcp", 401)])
        seller.as_usual()
        await done(buys, "get_offer", offer)
        await done(sells, "get_offer", offer)
        said(buys, "an altered body, an old signature, and one that does not cover the token are refused")


def said(client, what):
    print(f"{client.protocol_version}: {what}")


async def everything(gateway, operator):
    seller = Seller(gateway)
    for mode in ERAS:
        listing = new_listing(gateway)
        offers = await a_buyer_needs_the_url_and_its_credentials(gateway, mode, listing)
        await a_seller_consents(gateway, seller, mode, offers)
        await all_may_sign(gateway, operator, mode, new_listing(gateway))


def main(examples):
    # The library warns of what it leaves to its caller, and the client where it is not told the issuer beforehand.
    warnings.simplefilter("ignore")
    # A refresh has to fail.
    logging.getLogger("mcp.client.auth").setLevel(logging.ERROR)
    operator = interop.Operator()
    with interop.Gateway.running(examples, operator) as gateway:
        asyncio.run(everything(gateway, operator))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
    print("peers/python: the PyPI package mcp buys and sells, by OAuth and signed")
