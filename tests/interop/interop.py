"""RFC 9421 with another implementation on the other side: see ./run."""

import base64
import contextlib
import datetime
import hashlib
import http.server
import json
import pathlib
import queue
import secrets
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import warnings

import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from http_message_signatures import (
    HTTPMessageSigner,
    HTTPMessageVerifier,
    HTTPSignatureKeyResolver,
    InvalidSignature,
    algorithms,
)

ALGORITHM = algorithms.ECDSA_P256_SHA256
MINUTE = datetime.timedelta(seconds=60)


def base64url(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def jwk_of(key):
    """The public JWK, with its RFC 7638 thumbprint as kid."""
    numbers = key.public_key().public_numbers()
    jwk = {"crv": "P-256", "kty": "EC"}
    jwk |= {name: base64url(getattr(numbers, name).to_bytes(32, "big")) for name in "xy"}
    canonical = json.dumps(jwk, sort_keys=True, separators=(",", ":")).encode()
    return jwk | {"kid": base64url(hashlib.sha256(canonical).digest()), "alg": "ES256", "use": "sig"}


def key_of(jwk):
    x, y = (int.from_bytes(base64.urlsafe_b64decode(jwk[name] + "=="), "big") for name in "xy")
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()


class Keys(HTTPSignatureKeyResolver):
    """Verifies by public JWKs, and signs by one private key."""

    def __init__(self, jwks=(), private=None):
        self.public = {jwk["kid"]: key_of(jwk) for jwk in jwks}
        self.private = private

    def resolve_public_key(self, key_id):
        return self.public[key_id]

    def resolve_private_key(self, key_id):
        return self.private


def verified(message, jwks, body, components):
    """The library's verdict on a message; the one signature must cover exactly `components`."""
    verifier = HTTPMessageVerifier(signature_algorithm=ALGORITHM, key_resolver=Keys(jwks))
    (result,) = verifier.verify(message, max_age=MINUTE, body=body)
    covered = {name.split('"')[1] for name in result.covered_components if "@signature-params" not in name}
    assert result.label == "sig1", result.label
    assert covered == set(components), covered
    return result


def refused(message, jwks, body):
    verifier = HTTPMessageVerifier(signature_algorithm=ALGORITHM, key_resolver=Keys(jwks))
    with contextlib.suppress(InvalidSignature):
        verifier.verify(message, max_age=MINUTE, body=body)
        raise AssertionError("it was verified")


def sign(message, key, keyid, components, body=None, *, age=0, alg=False):
    """Signs a message as binding 2.1 asks; a body adds its Content-Digest, which is covered."""
    created = datetime.datetime.now() - datetime.timedelta(seconds=age)
    HTTPMessageSigner(signature_algorithm=ALGORITHM, key_resolver=Keys(private=key)).sign(
        message,
        key_id=keyid,
        created=created,
        expires=created + MINUTE,
        label="sig1",
        include_alg=alg,
        covered_component_ids=components,
        body=body,
    )


class Message:
    """A request as the library reads it."""

    def __init__(self, method, url, headers):
        self.method, self.url = method, url
        self.headers = requests.structures.CaseInsensitiveDict(headers)


class Operator:
    """An operator of this side: its profile, its agent's key, and its receiver of webhooks."""

    def __init__(self):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.jwk = jwk_of(self.key)
        self.webhooks = queue.Queue()
        operator = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                body = json.dumps(operator.document()).encode()
                self.send_response(200 if self.path == "/.well-known/ucp" else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                operator.webhooks.put((self.path, self.headers.items(), body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_):
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{server.server_port}"
        self.profile = f"{self.base}/.well-known/ucp"
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def document(self):
        version = "2026-11-draft5"
        about = {"legal_entity": "Interop AG", "jurisdiction": "CH", "incident_contact": "security@interop.example"}
        # With a query, which the signature then covers.
        told = {"webhook_url": f"{self.base}/webhooks?for=interop"}
        return {
            "ucp": {
                "version": "2026-08-25",
                "services": {},
                "payment_handlers": {},
                "capabilities": {
                    "dev.rctp.operator": [{"version": version, "config": about | {"incident_sla_hours": 24}}],
                    "dev.rctp.deal": [{"version": version, "config": told}],
                },
            },
            "keys": [self.jwk],
        }

    def signed(self, method, url, body=None, *, key=None, left_out=(), age=0, alg=False):
        """A request that the library signs as binding 2.1 asks."""
        headers = {"UCP-Agent": f'profile="{self.profile}"'}
        components = ["@method", "@authority", "@path", "ucp-agent"]
        if "?" in url:
            components.append("@query")
        if method == "POST":
            headers["Idempotency-Key"] = secrets.token_urlsafe(24)
            components.append("idempotency-key")
        if body is not None:
            headers["Content-Type"] = "application/json"
            components.append("content-type")
        components = [name for name in components if name not in left_out]
        request = requests.Request(method, url, headers=headers, data=body).prepare()
        sign(request, key or self.key, self.jwk["kid"], components, body, age=age, alg=alg)
        return request


class Gateway:
    """The example gateway, in a directory of its own."""

    def __init__(self, examples, directory, operator):
        settings = f"""
            dev = true
            listen = "127.0.0.1:0"
            store = "{directory}/rctp.db"
            signing_key = "{directory}/rctp-key.pem"
            dev_dir = "{directory}/rctp-dev"
            [[operators]]
            profile = "{operator.profile}"
        """
        (directory / "gateway.toml").write_text(settings)
        self.sign = examples / "sign"
        self.directory = directory
        self.process = subprocess.Popen(
            [examples / "gateway", "--config", directory / "gateway.toml", "--log", "warn"],
            stdout=subprocess.PIPE,
            text=True,
        )

    def listening(self):
        banner = iter(self.process.stdout.readline, "")
        assert any("A marketplace to play with" in line for line in banner), "the gateway did not start"
        threading.Thread(target=lambda: [None for _ in banner], daemon=True).start()
        self.world = json.loads((self.directory / "rctp-dev/world.json").read_text())
        self.url = self.world["url"]
        self.profile = requests.get(f"{self.url}/.well-known/ucp").json()

    @classmethod
    @contextlib.contextmanager
    def running(cls, examples, operator):
        """One that ends with the block, whatever ends that."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        with tempfile.TemporaryDirectory() as directory:
            gateway = cls(examples, pathlib.Path(directory), operator)
            try:
                gateway.listening()
                yield gateway
            finally:
                gateway.process.terminate()
                gateway.process.wait()

    def example_signs(self, agent, method, path, body=None, token=None):
        """The request that `cargo run --example sign` prints as a curl command, and the public key that it shows."""
        key, profile = self.directory / "agent.pem", self.world["agents"][agent]["profile"]
        key.write_text(self.world["agents"][agent]["key"])
        command = [self.sign, "--key", key]
        jwk = json.loads(subprocess.check_output([*command, "--show-jwk"], text=True))
        command += ["--profile", profile, "--method", method, "--url", self.url + path]
        command += ["--body", body] if body is not None else []
        command += ["--token", token] if token else []
        words = iter(shlex.split(subprocess.check_output(command, text=True)))
        assert (next(words), next(words), next(words)) == ("curl", "-sS", "-i")
        headers, said, url, data = {}, None, None, None
        for word in words:
            match word:
                case "-X":
                    said = next(words)
                case "-H":
                    name, value = next(words).split(": ", 1)
                    headers[name] = value
                case "--data-binary":
                    data = next(words).encode()
                case _:
                    url = word
        assert said == method
        return requests.Request(said, url, headers=headers, data=data).prepare(), jwk


def send(request):
    answer = requests.Session().send(request)
    return answer.status_code, answer.json()


def main(examples):
    # The library warns of what it leaves to its caller.
    warnings.simplefilter("ignore")
    operator = Operator()
    with Gateway.running(examples, operator) as gateway:
        theirs_is_accepted(gateway, operator)
        ours_is_verified(gateway)
        a_webhook_is_verified(gateway, operator)


def offer(gateway):
    terms = {
        "price": {"amount": 60_000, "currency": "EUR"},
        "fulfillment": {"method_type": "shipping", "selected_option_id": "standard"},
        "payment": {"selected_term_id": "prepaid"},
    }
    return json.dumps({"listing_id": gateway.world["listing_id"], "deal_terms": terms}).encode()


def theirs_is_accepted(gateway, operator):
    url, body = f"{gateway.url}/offers", offer(gateway)
    status, made = send(operator.signed("POST", url, body))
    assert status == 201, made
    status, read = send(operator.signed("GET", f"{gateway.url}/offers/{made['offer_id']}", alg=True))
    assert (status, read["offer_id"]) == (200, made["offer_id"]), read
    questions = f"{gateway.url}/listings/{gateway.world['listing_id']}/questions?limit=5"
    status, page = send(operator.signed("GET", questions))
    assert status == 200, page
    print("accepted: a POST with a body, a GET that names its algorithm, and a GET with a query, signed by http-message-signatures")

    strange = ec.generate_private_key(ec.SECP256R1())
    altered = operator.signed("POST", url, body)
    altered.body = body.replace(b"60000", b"60001")
    moved = operator.signed("GET", questions)
    moved.url = moved.url.replace("limit=5", "limit=6")
    for why, request in {
        "another key": operator.signed("POST", url, body, key=strange),
        "an altered body": altered,
        "an altered query": moved,
        "no coverage of the key": operator.signed("POST", url, body, left_out={"idempotency-key"}),
        "no coverage of the agent": operator.signed("POST", url, body, left_out={"ucp-agent"}),
        "two minutes old": operator.signed("POST", url, body, age=120),
    }.items():
        status, answer = send(request)
        assert (status, answer["error"]) == (401, "signature_invalid"), (why, status, answer)
        print(f"refused:  {why}")


def ours_is_verified(gateway):
    always = ["@method", "@authority", "@path", "ucp-agent"]
    written = [*always, "idempotency-key", "content-digest", "content-type"]
    token = gateway.world["grants"]["auto"]["access_token"]
    listed = f"/offers?listing_id={gateway.world['listing_id']}&limit=3"
    for agent, method, path, body, token, components in [
        ("buyer", "POST", "/offers", offer(gateway).decode(), None, written),
        ("buyer", "GET", "/listings/lst_1", None, None, always),
        ("seller", "GET", listed, None, token, [*always, "@query", "authorization"]),
    ]:
        request, jwk = gateway.example_signs(agent, method, path, body, token)
        verified(request, [jwk], request.body, components)
        stranger = jwk_of(ec.generate_private_key(ec.SECP256R1()))
        refused(request, [stranger | {"kid": jwk["kid"]}], request.body)
        altered = request.copy()
        altered.url += "x"
        refused(altered, [jwk], request.body)
        print(f"verified: {method} {path.split('?')[0]} as `cargo run --example sign` prints it")


def a_webhook_is_verified(gateway, operator):
    status, made = send(operator.signed("POST", f"{gateway.url}/offers", offer(gateway)))
    assert status == 201, made
    token = gateway.world["grants"]["auto"]["access_token"]
    path = f"/offers/{made['offer_id']}/decline"
    decline, _ = gateway.example_signs("seller", "POST", path, "{}", token)
    status, declined = send(decline)
    assert status == 200, declined

    path, headers, body = operator.webhooks.get(timeout=30)
    message = Message("POST", operator.base + path, headers)
    components = ["@method", "@authority", "@path", "@query", "content-digest", "content-type"]
    keys = gateway.profile["keys"]
    verified(message, keys, body, components)
    event = json.loads(body)
    assert (event["type"], event["data"]["offer_id"]) == ("offer.updated", made["offer_id"]), event
    assert message.headers["Webhook-Id"] == event["event_id"]
    created = datetime.datetime.fromisoformat(event["created_at"])
    assert int(message.headers["Webhook-Timestamp"]) == int(created.timestamp())
    refused(message, keys, body.replace(b"declined", b"accepted"))
    moved = Message("POST", message.url.replace("interop", "others"), headers)
    refused(moved, keys, body)
    print("verified: a webhook, by the keys of the gateway's profile; altered or sent elsewhere it is refused")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
    print("interop: all as RFC 9421 says")
