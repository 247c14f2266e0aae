// What `run` runs: each of the clients in turn buys and sells at one gateway.

import assert from 'node:assert/strict';
import { generateKeyPairSync } from 'node:crypto';

import { Provider, Signer, random } from './agent.mjs';
import { Gateway } from './gateway.mjs';
import { peers } from './peers.mjs';
import { Seller } from './seller.mjs';

const SCOPES = [
  'dev.rctp.deal:deal_commit_to_ship',
  'dev.rctp.deal:offer_accept',
  'dev.rctp.deal:offer_counter',
  'dev.rctp.listing:listing_answer_buyer',
  'dev.rctp.listing:listing_create',
  'dev.rctp.listing:listing_reprice',
  'dev.rctp.listing:listing_set_terms',
];
/** Every scope at `auto`, but that whose terms the seller always confirms. */
const AUTO = Object.fromEntries(SCOPES.map((scope) => [scope, scope.endsWith('set_terms') ? 'ask' : 'auto']));
/** What a seller grants at most; `post_deal_event` is for those who sign. */
const SELLING = [
  'create_listing',
  'set_listing_terms',
  'reprice_listing',
  'answer_buyer',
  'get_offer',
  'counter_offer',
  'accept_offer',
  'decline_offer',
  'get_approval',
  'post_deal_event',
  'get_deal_events',
  'commit_to_ship',
];
const UNAUTHORIZED = 'POST /mcp 401 see /.well-known/oauth-protected-resource/mcp';
const DISCOVERED = [
  UNAUTHORIZED,
  'GET /.well-known/oauth-protected-resource/mcp 200',
  'GET /.well-known/oauth-authorization-server 200',
];

let count = 0;
const shown = (what) => {
  count += 1;
  console.log(`  ${what}`);
};
const keyed = (args) => ({ ...args, meta: { 'idempotency-key': random() } });
const offered = (listing_id) =>
  keyed({
    listing_id,
    deal_terms: {
      price: { amount: 60_000, currency: 'EUR' },
      fulfillment: { method_type: 'shipping', selected_option_id: 'standard' },
      payment: { selected_term_id: 'prepaid' },
    },
  });

/** `fetch`, which remembers each request, its status, and where it is sent to for the metadata. */
function heard() {
  const requests = [];
  const remembering = async (url, init) => {
    const response = await fetch(url, init);
    const said = [init?.method ?? 'GET', new URL(url).pathname, response.status];
    const [, metadata] = /resource_metadata="([^"]*)"/.exec(response.headers.get('www-authenticate')) ?? [];
    if (metadata) said.push(`see ${metadata.replace(gateway.url, '')}`);
    const request = said.join(' ');
    // Clients of `initialize` try for a stream of the server's own, beside whatever else they do.
    if (request !== 'GET /mcp 405') requests.push(request);
    return response;
  };
  return { requests, fetch: remembering };
}

/** `fetch`, whose answers' structured content is changed. */
const altered = (change) => async (url, init) => {
  const response = await fetch(url, init);
  if (!String(init?.body).includes('"tools/call"')) return response;
  const message = await response.json();
  change(message.result.structuredContent);
  return Response.json(message);
};

async function connected(peer, options) {
  const client = peer.client();
  await client.connect(peer.transport(gateway.mcp, options));
  assert.equal(peer.negotiated(client), peer.version);
  return client;
}

async function names(client) {
  const { tools } = await client.listTools();
  for (const { inputSchema, outputSchema } of tools)
    assert.deepEqual([inputSchema.type, outputSchema.type], ['object', 'object']);
  return tools.map(({ name }) => name);
}

/** What a tool comes to; it is in the text as well. */
async function call(client, name, args) {
  const { content, structuredContent, isError = false } = await client.callTool({ name, arguments: args });
  assert.equal(isError, false);
  assert.deepEqual(JSON.parse(content[0].text), structuredContent);
  return structuredContent;
}

/** The same, decided `auto`. */
async function done(client, name, args) {
  const { decision, result } = await call(client, name, args);
  assert.deepEqual(decision, { decision: 'auto' });
  return result;
}

/** The tool is refused with this code, which the client understands as an error of the protocol. */
async function refused(peer, calling, expected) {
  await assert.rejects(calling, (error) => {
    assert(error instanceof peer.Refused, error);
    assert.deepEqual([error.code, error.data.code], [-32000, expected]);
    return true;
  });
}

/** OAuth by client credentials, of an agent that knows where it is registered. */
const registered = (peer, { client_id, client_secret }) =>
  peer.credentials({ clientId: client_id, clientSecret: client_secret, expectedIssuer: gateway.url });

// ---- The scenes

async function buysByOAuth(peer) {
  const { requests, fetch } = heard();
  const { client_id, client_secret } = gateway.world.agents.buyer;
  const authProvider = peer.credentials({ clientId: client_id, clientSecret: client_secret });
  const client = await connected(peer, { authProvider, fetch });
  assert.deepEqual(requests.slice(0, 5), [...DISCOVERED, 'POST /oauth/token 200', 'POST /mcp 200']);
  assert.deepEqual(await names(client), ['create_offer', 'get_offer', 'decline_offer', 'get_deal_events']);
  shown('a buyer with its credentials alone is led from the 401 to the metadata and to a token, and lists its tools');

  const offer = offered(await gateway.listing());
  const made = await done(client, 'create_offer', offer);
  assert.deepEqual([made.state, made.deal_terms], ['open', offer.deal_terms]);
  assert.deepEqual(await done(client, 'get_offer', { offer_id: made.offer_id }), made);
  assert.deepEqual(await done(client, 'create_offer', offer), made);
  const another = await done(client, 'create_offer', keyed(offer));
  assert.notEqual(another.offer_id, made.offer_id);
  const otherwise = { ...offer, listing_id: await gateway.listing() };
  await refused(peer, call(client, 'create_offer', otherwise), 'idempotency_conflict');
  shown('it makes an offer, once for each idempotency-key, and reads it');

  await refused(peer, call(client, 'get_offer', { offer_id: 'off_none' }), 'not_found');
  shown('an offer that is none is -32000, not_found');
  await client.close();
}

async function checksResults(peer) {
  const offer = offered(await gateway.listing());
  for (const [change, says] of [
    [() => {}, undefined],
    [({ result }) => (result.state = 'sideways'), /allowed values/],
    [({ result }) => delete result.offer_id, /required property 'offer_id'/],
  ]) {
    const authProvider = registered(peer, gateway.world.agents.buyer);
    const client = await connected(peer, { authProvider, fetch: altered(change) });
    await client.listTools();
    const calling = client.callTool({ name: 'create_offer', arguments: offer });
    if (says) await assert.rejects(calling, says);
    else assert.equal((await calling).structuredContent.result.state, 'open');
    await client.close();
  }
  shown('it holds results against the output schemas: what is altered on the way, it refuses');
}

/** The code flow, from the first 401 to tokens for the provider. The seller allows what is asked, or less. */
async function granted(peer, { tiers, allowed = tiers, jkt }) {
  const { requests, fetch } = heard();
  const authProvider = new Provider(gateway.url, gateway.world.agents.seller, tiers, jkt);
  const transport = peer.transport(gateway.mcp, { authProvider, fetch });
  await assert.rejects(peer.client().connect(transport), peer.Unauthorized);
  assert.deepEqual(requests, DISCOVERED);
  const asking = Object.fromEntries(authProvider.sent.searchParams);
  assert.deepEqual(asking.scope.split(' '), SCOPES);
  assert.equal(asking.code_challenge_method, 'S256');
  assert.equal(asking.resource, gateway.mcp.href);

  const { client, agent_id, scopes } = await seller.asked(authProvider.sent);
  assert.deepEqual([client.client_id, client.jkt, agent_id], ['seller-agent', jkt, authProvider.details.agent_id]);
  assert.deepEqual(Object.fromEntries(scopes.map(({ scope, tier }) => [scope, tier])), tiers);
  const back = await seller.allow(authProvider.sent, allowed);
  assert.equal(back.href.split('?')[0], authProvider.redirectUrl);
  assert.equal(back.searchParams.get('state'), authProvider.said);

  await peer.finish(transport, back.searchParams);
  assert.deepEqual(requests, [...DISCOVERED, 'POST /oauth/token 200']);
  assert.deepEqual(authProvider.kept.scope.split(' '), Object.keys(allowed));
  return authProvider;
}

async function sellsByOAuth(peer) {
  const buyer = await connected(peer, { authProvider: registered(peer, gateway.world.agents.buyer) });
  const authProvider = await granted(peer, { tiers: { ...AUTO, 'dev.rctp.deal:offer_accept': 'ask' } });
  const { requests, fetch } = heard();
  const client = await connected(peer, { authProvider, fetch });
  assert.deepEqual(
    await names(client),
    SELLING.filter((name) => name !== 'post_deal_event'),
  );
  shown("a seller's agent is led from the 401 to the consent page, and with the code to a grant; it lists its tools");

  const offer = offered(await gateway.listing());
  const { offer_id } = await done(buyer, 'create_offer', offer);
  const { price, ...others } = offer.deal_terms;
  const dearer = { price: { ...price, amount: price.amount + 1_000 }, ...others };
  const counter = await done(client, 'counter_offer', keyed({ offer_id, deal_terms: dearer }));
  assert.deepEqual([counter.by, counter.supersedes, counter.deal_terms], ['seller', offer_id, dearer]);
  assert.equal((await done(buyer, 'get_offer', { offer_id })).state, 'countered');
  const other = await done(buyer, 'create_offer', offered(await gateway.listing()));
  const declined = await done(client, 'decline_offer', keyed({ offer_id: other.offer_id }));
  assert.deepEqual(declined, { ...other, state: 'declined' });
  shown('it counters one offer and declines another');

  const third = await done(buyer, 'create_offer', offered(await gateway.listing()));
  const { decision, result } = await call(client, 'accept_offer', keyed({ offer_id: third.offer_id }));
  const { approval_id, expires_in, ...rest } = decision;
  assert.deepEqual(rest, { decision: 'ask', on_timeout: 'deny' });
  assert(expires_in > 0 && expires_in <= 900, expires_in);
  const { approval_request } = result;
  assert.deepEqual([approval_request.approval_id, approval_request.action], [approval_id, 'offer.accept']);
  assert.equal((await done(client, 'get_approval', { approval_id })).status, 'pending');
  await seller.decline(approval_id);
  assert.equal((await done(client, 'get_approval', { approval_id })).status, 'declined');
  assert.equal((await done(buyer, 'get_offer', { offer_id: third.offer_id })).state, 'declined');
  shown('to accept a third it has to ask; the seller says no');

  const before = authProvider.kept;
  authProvider.kept = { ...before, access_token: random() };
  requests.length = 0;
  assert.equal((await done(client, 'get_offer', { offer_id })).state, 'countered');
  assert.deepEqual(requests, [UNAUTHORIZED, 'POST /oauth/token 200', 'POST /mcp 200']);
  const { access_token, refresh_token } = authProvider.kept;
  assert.notEqual(access_token, before.access_token);
  assert.notEqual(refresh_token, before.refresh_token);
  shown('with an access token that counts no more, it refreshes and goes on');

  await seller.revoke(authProvider.details.agent_id);
  requests.length = 0;
  await refused(peer, call(client, 'get_offer', { offer_id }), 'grant_revoked');
  assert.deepEqual(requests, ['POST /mcp 200']);
  authProvider.kept = { ...authProvider.kept, access_token: random() };
  const { sent } = authProvider;
  await assert.rejects(call(client, 'get_offer', { offer_id }), peer.Unauthorized);
  assert.equal(authProvider.kept, undefined);
  assert.notEqual(authProvider.said, sent.searchParams.get('state'));
  shown(
    'a grant that the seller takes back is -32000, grant_revoked; when its token counts no more, consent is asked anew',
  );
  await Promise.all([client.close(), buyer.close()]);
}

async function isGrantedLess(peer) {
  const authProvider = await granted(peer, { tiers: AUTO, allowed: { 'dev.rctp.deal:offer_counter': 'ask' } });
  const client = await connected(peer, { authProvider });
  const may = ['get_offer', 'counter_offer', 'decline_offer', 'get_approval', 'get_deal_events'];
  assert.deepEqual(await names(client), may);
  await refused(peer, call(client, 'accept_offer', keyed({ offer_id: 'off_none' })), 'action_forbidden');
  shown(
    'where the seller allows one scope of those asked for, its tools alone are listed, and another is action_forbidden',
  );
  await client.close();
}

async function tradesBySignature(peer) {
  const { buyer, seller: known, funds_holder } = gateway.world.agents;
  const [theirs, ours, holders] = [buyer, known, funds_holder].map((agent) => new Signer(agent));
  const buying = await connected(peer, { fetch: theirs.fetch });
  assert.deepEqual(await names(buying), [
    'create_offer',
    'get_offer',
    'decline_offer',
    'create_deal',
    'post_deal_event',
    'get_deal_events',
  ]);
  const strange = generateKeyPairSync('ec', { namedCurve: 'P-256' }).privateKey;
  const longer = (url, { body, ...init }) => fetch(url, { ...init, body: `${body} ` });
  for (const [signer, why] of [
    [{ fetch }, 'operator_unknown'],
    [Object.assign(new Signer(buyer), { key: strange }), 'signature_invalid'],
    [Object.assign(new Signer(buyer), { send: longer }), 'signature_invalid'],
  ])
    await assert.rejects(connected(peer, { fetch: signer.fetch }), (error) => {
      assert(error instanceof peer.HttpError, error);
      const { status, body } = peer.refused(error);
      assert.deepEqual([status, body.error.code, body.error.data.code], [401, -32000, why]);
      return true;
    });
  shown(
    'a buyer that signs lists the tools for which one has to; another key, or another body than was signed, is refused',
  );

  const authProvider = await granted(peer, { tiers: AUTO, jkt: ours.keyid });
  const selling = await connected(peer, { authProvider, fetch: ours.fetch });
  assert.deepEqual(await names(selling), SELLING);
  const { offer_id } = await done(buying, 'create_offer', offered(await gateway.listing()));
  const accepted = await done(selling, 'accept_offer', keyed({ offer_id }));
  assert.deepEqual([accepted.offer_id, accepted.state], [offer_id, 'accepted']);
  const { requests, fetch: unsigned } = heard();
  await assert.rejects(connected(peer, { authProvider, fetch: unsigned }), peer.HttpError);
  // It takes the 401 to mean that the token has run out, and tries once with another.
  assert.deepEqual(requests, [UNAUTHORIZED, 'POST /oauth/token 200', UNAUTHORIZED]);
  shown("a seller's agent that signs accepts with a token that is bound to its key; the token alone does not do");

  const { checkout } = await done(buying, 'get_offer', { offer_id });
  const deal = await done(buying, 'create_deal', keyed({ checkout }));
  assert.deepEqual([deal.offer_id, deal.buyer_jkt], [offer_id, theirs.keyid]);
  const { deal_id } = deal;
  const event = {
    deal_id,
    event_id: `evt_${random()}`,
    event: 'funds_held',
    occurred_at: new Date().toISOString(),
    observation: 'first_hand',
  };
  const holding = await connected(peer, { fetch: holders.fetch });
  const jws = holders.jws('rctp-deal-event+jwt', event);
  const recorded = await done(holding, 'post_deal_event', keyed({ deal_id, event: jws }));
  assert.deepEqual([recorded.event_id, recorded.event, recorded.counts], [event.event_id, 'funds_held', true]);
  const { entries } = await done(selling, 'get_deal_events', { deal_id });
  assert.deepEqual(
    entries.map(({ operation, keyid }) => [operation, keyid]),
    [
      ['create_deal', theirs.keyid],
      ['post_deal_event', holders.keyid],
    ],
  );
  assert.equal(entries[1].deal_event.jws, jws);
  shown('the buyer makes the deal, the holder of funds reports on it, and the record has both');
  await Promise.all([buying, selling, holding].map((client) => client.close()));
}

// ---- The run

// Here the clients say what an application should do better.
const warnings = [];
console.warn = (text) => warnings.push(text);
const LIMIT = 120_000;
setTimeout(() => {
  console.error(`peers/npm: still not done after ${LIMIT / 1000} s`);
  process.exit(1);
}, LIMIT).unref();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(130));

const gateway = await Gateway.start();
const seller = await Seller.enrolled(gateway);
for (const peer of peers) {
  console.log(peer.name);
  for (const scene of [buysByOAuth, checksResults, sellsByOAuth, isGrantedLess, tradesBySignature]) await scene(peer);
}
// They advise to name the issuer, where nothing but the URL is to be known, and say that a grant has ended.
assert.deepEqual(
  warnings.filter((text) => !/expectedIssuer|invalid_grant/.test(text)),
  [],
);
console.log(`peers/npm: ${peers.length} clients, ${count} things shown`);
process.exit(0);
