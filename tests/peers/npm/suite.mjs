// What `run` runs: each of the clients in turn buys and sells at one gateway.

import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';

import { Gateway } from './gateway.mjs';
import { peers } from './peers.mjs';

const random = () => randomBytes(24).toString('base64url');
const keyed = (tool) => ({ ...tool, meta: { 'idempotency-key': random() } });

/** `fetch`, which remembers each request and its status. */
function heard() {
  const requests = [];
  const remembering = async (url, init) => {
    const response = await fetch(url, init);
    requests.push(`${init?.method ?? 'GET'} ${new URL(url).pathname} ${response.status}`);
    return response;
  };
  return { requests, fetch: remembering };
}

async function connected(peer, gateway, options) {
  const client = peer.client();
  await client.connect(peer.transport(gateway.mcp, options));
  assert.equal(peer.negotiated(client), peer.version);
  return client;
}

const names = async (client) => (await client.listTools()).tools.map(({ name }) => name);

/** A tool's result, which has the text of its structured content as well. */
async function call(client, name, args) {
  const result = await client.callTool({ name, arguments: args });
  assert.equal(result.isError ?? false, false);
  assert.deepEqual(JSON.parse(result.content[0].text), result.structuredContent);
  return result.structuredContent;
}

const terms = (amount) => ({
  price: { amount, currency: 'EUR' },
  fulfillment: { method_type: 'shipping', selected_option_id: 'standard' },
  payment: { selected_term_id: 'prepaid' },
});

async function buysByOAuth(peer, gateway) {
  const { client_id, client_secret } = gateway.world.agents.buyer;
  const { requests, fetch } = heard();
  const authProvider = peer.credentials(client_id, client_secret);
  const client = await connected(peer, gateway, { authProvider, fetch });
  assert.deepEqual(requests.slice(0, 5), [
    'POST /mcp 401',
    'GET /.well-known/oauth-protected-resource/mcp 200',
    'GET /.well-known/oauth-authorization-server 200',
    'POST /oauth/token 200',
    'POST /mcp 200',
  ]);
  assert.deepEqual(await names(client), ['create_offer', 'get_offer', 'decline_offer', 'get_deal_events']);
  shown(peer, 'a buyer with client credentials, who is led by the 401 to the metadata and to a token, lists the tools');

  const offered = keyed({ listing_id: gateway.world.listing_id, deal_terms: terms(60_000) });
  const made = await call(client, 'create_offer', offered);
  assert.deepEqual(made.decision, { decision: 'auto' });
  assert.deepEqual([made.result.state, made.result.deal_terms], ['open', offered.deal_terms]);
  const read = await call(client, 'get_offer', { offer_id: made.result.offer_id });
  assert.deepEqual(read, made);
  assert.deepEqual(await call(client, 'create_offer', offered), made);
  const another = await call(client, 'create_offer', { ...offered, ...keyed({}) });
  assert.notEqual(another.result.offer_id, made.result.offer_id);
  shown(peer, 'an offer is made, read, and made once for one idempotency-key');

  await assert.rejects(call(client, 'get_offer', { offer_id: 'off_none' }), (error) => {
    assert(error instanceof peer.Refused);
    assert.deepEqual([error.code, error.data.code], [-32000, 'not_found']);
    return true;
  });
  shown(peer, 'an offer that is none is the error -32000, not_found');
  await client.close();
}

const shown = (peer, what) => console.log(`${peer.name}: ${what}`);

// The clients advise to name the issuer; here they are to find it.
console.warn = () => {};
const gateway = await Gateway.start();
for (const peer of peers) await buysByOAuth(peer, gateway);
console.log('peers/npm: all shown');
process.exit(0);
