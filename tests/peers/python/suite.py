"""MCP with the official client on the other side: see ./run."""

import asyncio
import contextlib
import datetime
import json
import pathlib
import secrets
import sys
import urllib.parse
import warnings

import httpx2
import jwt
from cryptography.hazmat.primitives import serialization
from interop import Gateway, Message, Operator, jwk_of, sign
from interop import offer as offer_body
from mcp import Client, MCPError
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.auth.extensions.client_credentials import ClientCredentialsOAuthProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata
from seller import Seller

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
        assert client.protocol_version == ERAS[mode], client.protocol_version
        yield client, asked


def is_(found, wanted):
    assert found == wanted, f"{found!r} instead of {wanted!r}"


def keyed(arguments):
    return arguments | {"meta": {"idempotency-key": secrets.token_urlsafe(24)}}


async def names(client):
    return [tool.name for tool in (await client.list_tools()).tools]


async def done(client, tool, arguments):
    """The result of a call that is carried out."""
    result = await client.call_tool(tool, arguments)
    is_(result.is_error, False)
    is_(result.structured_content["decision"], {"decision": "auto"})
    return result.structured_content["result"]


async def refused(client, tool, arguments, code):
    try:
        answer = await client.call_tool(tool, arguments)
    except MCPError as error:
        is_((error.code, error.data["code"]), (-32000, code))
        return error.data
    raise AssertionError(answer)


def an_offer(gateway):
    return keyed(json.loads(offer_body(gateway)))


FOUND = [
    ("POST", "/mcp", 401),
    ("GET", "/.well-known/oauth-protected-resource/mcp", 200),
    ("GET", "/.well-known/oauth-authorization-server", 200),
    ("POST", "/oauth/token", 200),
    ("POST", "/mcp", 200),
]


async def a_buyer_needs_the_url_and_its_credentials(gateway, mode):
    agent = gateway.world["agents"]["buyer"]
    auth = ClientCredentialsOAuthProvider(
        endpoint(gateway), Storage(), client_id=agent["client_id"], client_secret=agent["client_secret"]
    )
    async with connected(gateway, auth, mode) as (client, asked):
        is_(asked[: len(FOUND)], FOUND)
        is_(await names(client), ["create_offer", "get_offer", "decline_offer", "get_deal_events"])
        arguments = an_offer(gateway)
        made = await done(client, "create_offer", arguments)
        is_(await done(client, "create_offer", arguments), made)
        other = await done(client, "create_offer", an_offer(gateway))
        assert other["offer_id"] != made["offer_id"]
        is_((await done(client, "get_offer", {"offer_id": made["offer_id"]}))["state"], "open")
        await refused(client, "get_offer", {"offer_id": "off_none"}, "not_found")
        print(f"{client.protocol_version}: a buyer with its URL and credentials finds the authorization server, and offers")
        return made["offer_id"]


def main(examples):
    # The library warns of what it leaves to its caller, and the client of an issuer that is not known beforehand.
    warnings.simplefilter("ignore")
    operator = Operator()
    with Gateway.running(examples, operator) as gateway:
        seller = Seller(gateway)
        for mode in ERAS:
            asyncio.run(a_buyer_needs_the_url_and_its_credentials(gateway, mode))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
    print("peers/python: the PyPI package mcp buys and sells, with OAuth and signed")
