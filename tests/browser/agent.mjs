// Agents, written from the binding alone: requests signed by RFC 9421 with ES256, and the code flow with PKCE.

import { createHash, createPrivateKey, createPublicKey, randomBytes, sign } from 'node:crypto';
import { createServer } from 'node:http';
import assert from 'node:assert/strict';

const sha256 = (data) => createHash('sha256').update(data).digest();
const random = () => randomBytes(24).toString('base64url');

export class Agent {
  /** `known` is an agent of `world.json`; `token` the grant's access token, for the seller's agent. */
  constructor(gateway, known, token) {
    this.url = gateway.url;
    this.profile = known.profile;
    this.token = token;
    this.key = createPrivateKey(known.key);
    const { crv, kty, x, y } = createPublicKey(this.key).export({ format: 'jwk' });
    // RFC 7638: these members, in this order.
    this.keyid = sha256(JSON.stringify({ crv, kty, x, y })).toString('base64url');
  }

  /** Every answer, headers and all, as text. */
  heard = '';

  get(path) {
    return this.call('GET', path);
  }

  post(path, body = {}) {
    return this.call('POST', path, body);
  }

  async call(method, path, body) {
    const url = new URL(path, this.url);
    const content = body && JSON.stringify(body);
    const headers = { 'ucp-agent': `profile="${this.profile}"` };
    if (method === 'POST') headers['idempotency-key'] = random();
    if (content) {
      headers['content-digest'] = `sha-256=:${sha256(content).toString('base64')}:`;
      headers['content-type'] = 'application/json';
    }
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    this.sign(method, url, headers);
    const response = await fetch(url, { method, headers, body: content, redirect: 'error' });
    const text = await response.text();
    this.heard += `${method} ${path} ${response.status}\n${JSON.stringify([...response.headers])}\n${text}\n`;
    return {
      status: response.status,
      decision: response.headers.get('rctp-decision'),
      body: JSON.parse(text || 'null'),
    };
  }

  sign(method, url, headers) {
    const derived = [
      ['@method', method],
      ['@authority', url.host],
      ['@path', url.pathname],
    ];
    if (url.search) derived.push(['@query', url.search]);
    const covered = [...derived, ...Object.entries(headers)];
    const created = Math.floor(Date.now() / 1000);
    const names = covered.map(([name]) => `"${name}"`).join(' ');
    const params = `(${names});created=${created};expires=${created + 60};keyid="${this.keyid}"`;
    const base = [...covered.map(([name, value]) => `"${name}": ${value}`), `"@signature-params": ${params}`].join(
      '\n',
    );
    const signature = sign('sha256', Buffer.from(base), { key: this.key, dsaEncoding: 'ieee-p1363' });
    headers['signature-input'] = `sig1=${params}`;
    headers.signature = `sig1=:${signature.toString('base64')}:`;
  }
}

/** An OAuth client that asks a seller for a grant, and waits at a loopback address for the answer. */
export class Client {
  static async open(gateway, known, keyid) {
    const client = new Client();
    const metadata = await fetch(`${gateway.url}/.well-known/oauth-authorization-server`);
    Object.assign(client, {
      known,
      keyid,
      metadata: await metadata.json(),
      state: random(),
      verifier: random() + random(),
    });
    client.answer = new Promise((resolve) => {
      client.server = createServer((request, response) => {
        response.setHeader('content-type', 'text/html');
        response.end('<!doctype html><title>Back at the agent</title><link rel="icon" href="data:,">');
        resolve(new URL(request.url, 'http://127.0.0.1').searchParams);
      });
    });
    await new Promise((listening) => client.server.listen(0, '127.0.0.1', listening));
    client.redirectUri = `http://127.0.0.1:${client.server.address().port}/callback`;
    return client;
  }

  /** Where the seller's browser is to go. */
  ask(tiers) {
    const url = new URL(this.metadata.authorization_endpoint);
    const details = { type: 'dev.rctp.agent_grant', agent_id: 'selling-helper', jkt: this.keyid, tiers };
    url.search = new URLSearchParams({
      response_type: 'code',
      client_id: this.known.client_id,
      redirect_uri: this.redirectUri,
      state: this.state,
      code_challenge: sha256(this.verifier).toString('base64url'),
      code_challenge_method: 'S256',
      authorization_details: JSON.stringify([details]),
    });
    return url.href;
  }

  /** What the seller's browser brought back; of this request and from this server (RFC 9207). */
  async answered() {
    const answer = await this.answer;
    assert.equal(answer.get('state'), this.state);
    assert.equal(answer.get('iss'), this.metadata.issuer);
    return answer;
  }

  /** The tokens for a code. */
  async redeem(code) {
    const { client_id, client_secret } = this.known;
    const response = await fetch(this.metadata.token_endpoint, {
      method: 'POST',
      headers: { authorization: `Basic ${Buffer.from(`${client_id}:${client_secret}`).toString('base64')}` },
      body: new URLSearchParams({
        grant_type: 'authorization_code',
        code,
        redirect_uri: this.redirectUri,
        code_verifier: this.verifier,
      }),
    });
    assert.equal(response.status, 200);
    return response.json();
  }

  close() {
    this.server.close();
    this.server.closeAllConnections();
  }
}
