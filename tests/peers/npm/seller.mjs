// The seller at a browser, without either: a passkey made in software, and what the hosted pages send.

import assert from 'node:assert/strict';
import { createHash, generateKeyPairSync, randomBytes } from 'node:crypto';

const sha256 = (data) => createHash('sha256').update(data).digest();

/** `navigator.credentials.create`, by an authenticator that holds one key and shows no attestation. */
function passkey(options, origin) {
  const id = randomBytes(16);
  const { x, y } = generateKeyPairSync('ec', { namedCurve: 'P-256' }).publicKey.export({ format: 'jwk' });
  const clientData = { type: 'webauthn.create', challenge: options.challenge, origin, crossOrigin: false };
  // COSE: {1: 2, 3: -7, -1: 1, -2: x, -3: y}.
  const key = Buffer.concat([
    Buffer.from('a5010203262001215820', 'hex'),
    Buffer.from(x, 'base64url'),
    Buffer.from('225820', 'hex'),
    Buffer.from(y, 'base64url'),
  ]);
  const data = Buffer.concat([
    sha256(options.rp.id),
    // User present, user verified, attested credential data; then the counter, the AAGUID and the id's length.
    Buffer.from([0x45]),
    Buffer.alloc(4 + 16),
    Buffer.from([0, id.length]),
    id,
    key,
  ]);
  // CBOR: {"fmt": "none", "attStmt": {}, "authData": data}.
  const attestation = Buffer.concat([
    Buffer.from('\xa3\x63fmt\x64none\x67attStmt\xa0\x68authData\x58', 'latin1'),
    Buffer.from([data.length]),
    data,
  ]);
  return {
    id: id.toString('base64url'),
    rawId: id.toString('base64url'),
    type: 'public-key',
    clientExtensionResults: {},
    response: {
      clientDataJSON: Buffer.from(JSON.stringify(clientData)).toString('base64url'),
      attestationObject: attestation.toString('base64url'),
    },
  };
}

export class Seller {
  /** Enrols a passkey, which signs the seller in. */
  static async enrolled(gateway) {
    const seller = new Seller();
    seller.origin = gateway.url;
    const ticket = new URL(await gateway.enrolment()).hash.replace('#ticket=', '');
    const { publicKey, state } = await seller.post('/enroll/options', { ticket }, 200);
    await seller.post('/enroll/complete', { ticket, state, credential: passkey(publicKey, seller.origin) }, 201);
    assert.match(seller.cookie, /^rctp_session=/);
    return seller;
  }

  async post(path, body, expected = 200) {
    const headers = { origin: this.origin, 'content-type': 'application/json' };
    if (this.cookie) headers.cookie = this.cookie;
    const response = await fetch(this.origin + path, { method: 'POST', headers, body: JSON.stringify(body) });
    const text = await response.text();
    assert.equal(response.status, expected, `${path}: ${text}`);
    this.cookie ??= response.headers.get('set-cookie')?.split(';')[0];
    return text && JSON.parse(text);
  }

  async get(path) {
    const response = await fetch(this.origin + path, { headers: { cookie: this.cookie } });
    assert.equal(response.status, 200, path);
    return response.json();
  }

  /** Opens the page of consent that an agent sends the browser to: what it asks. */
  async asked(url) {
    const page = await fetch(url, { redirect: 'manual' });
    assert.equal(page.status, 200, page.headers.get('location'));
    return this.get(`/oauth/consent${url.search}`);
  }

  /** Allows that much of it: where the browser goes then. */
  async allow(url, tiers) {
    const { redirect } = await this.post('/oauth/consent', { query: url.search, decision: 'allow', tiers });
    return new URL(redirect);
  }

  /** Says no to what waits for approval. */
  async decline(approvalId) {
    await this.post(`/approvals/${approvalId}/response`, { decision: 'decline' });
  }

  /** Takes back the grant of the agent that calls itself so. */
  async revoke(agentId) {
    const { grants } = await this.get('/grants/list');
    const [grant, ...others] = grants.filter(({ agent_id }) => agent_id === agentId);
    assert.equal(others.length, 0);
    await this.post(`/grants/${grant.grant_id}/revoke`, {}, 204);
  }
}
