// What an application brings along to a client: an OAuth provider, and signatures.

import { createHash, createPrivateKey, createPublicKey, randomBytes, sign } from 'node:crypto';

import { createSigner, httpbis } from 'http-message-signatures';

const sha256 = (data) => createHash('sha256').update(data).digest();

/** What nobody guesses: 192 bits. */
export const random = () => randomBytes(24).toString('base64url');

/** The OAuth of an application that sells: in the memory of the process, with one browser. */
export class Provider {
  /** A client of this issuer that asks for `tiers`; for an agent that signs, `jkt` is the thumbprint of its key. */
  constructor(issuer, { client_id, client_secret }, tiers, jkt) {
    this.known = { issuer, client_id, client_secret };
    this.details = { type: 'dev.rctp.agent_grant', agent_id: `agent-${random()}`, jkt, tiers };
  }

  // Nobody listens there: the suite is the browser.
  redirectUrl = 'http://127.0.0.1:51004/callback';
  clientMetadata = { client_name: 'peers', redirect_uris: [this.redirectUrl] };

  clientInformation() {
    return this.known;
  }

  saveClientInformation(known) {
    this.known = known;
  }

  state() {
    return (this.said = random());
  }

  tokens() {
    return this.kept;
  }

  saveTokens(tokens) {
    this.kept = tokens;
  }

  codeVerifier() {
    return this.verifier;
  }

  saveCodeVerifier(verifier) {
    this.verifier = verifier;
  }

  saveDiscoveryState(state) {
    this.discovered = state;
  }

  discoveryState() {
    return this.discovered;
  }

  invalidateCredentials(which) {
    if (which === 'tokens' || which === 'all') this.kept = undefined;
  }

  /** Adds what the binding asks (3.2), and keeps where the browser is to go. */
  redirectToAuthorization(url) {
    url.searchParams.set('authorization_details', JSON.stringify([this.details]));
    this.sent = url;
  }
}

/** An agent's key, and what is signed with it. */
export class Signer {
  constructor({ profile, key }) {
    this.profile = profile;
    this.key = createPrivateKey(key);
    // RFC 7638: these members, in this order.
    const { crv, kty, x, y } = createPublicKey(this.key).export({ format: 'jwk' });
    this.keyid = sha256(JSON.stringify({ crv, kty, x, y })).toString('base64url');
  }

  send = fetch;

  /** `fetch` with the signature of binding 2.1 on each POST to the endpoint; what OAuth asks goes as it is. */
  fetch = async (url, init) => {
    if (init?.method !== 'POST' || new URL(url).pathname !== '/mcp') return fetch(url, init);
    const headers = Object.fromEntries(new Headers(init.headers));
    headers['ucp-agent'] = `profile="${this.profile}"`;
    headers['content-digest'] = `sha-256=:${sha256(init.body).toString('base64')}:`;
    const covered = ['ucp-agent', 'content-digest', 'content-type', 'authorization'].filter((name) => name in headers);
    const created = new Date();
    const config = {
      key: createSigner(this.key, 'ecdsa-p256-sha256', this.keyid),
      name: 'sig1',
      fields: ['@method', '@authority', '@path', ...covered],
      params: ['created', 'expires', 'keyid'],
      paramValues: { created, expires: new Date(created.getTime() + 60_000) },
    };
    const signed = await httpbis.signMessage(config, { method: 'POST', url: String(url), headers });
    return this.send(url, { ...init, headers: signed.headers });
  };

  /** A compact JWS. */
  jws(typ, payload) {
    const encoded = (part) => Buffer.from(JSON.stringify(part)).toString('base64url');
    const signed = `${encoded({ alg: 'ES256', typ, kid: this.keyid })}.${encoded(payload)}`;
    const signature = sign('sha256', Buffer.from(signed), { key: this.key, dsaEncoding: 'ieee-p1363' });
    return `${signed}.${signature.toString('base64url')}`;
  }
}
