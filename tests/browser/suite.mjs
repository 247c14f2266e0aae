// What a seller does in a browser, with the real gateway behind the pages and real agents beside them. `run` starts it.

import { generateKeyPairSync } from 'node:crypto';
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import assert from 'node:assert/strict';
import { Agent, Client } from './agent.mjs';
import { Browser } from './browser.mjs';
import { Gateway } from './gateway.mjs';

const LIST_PRICE = 98_765_400;
// Floors that no other number, time or id can be taken for: what the agent proposes, and what the seller makes of it.
const PROPOSED = 51_234_567;
const CHOSEN = 54_321_098;
const SCOPE = {
  create: 'dev.rctp.listing:listing_create',
  reprice: 'dev.rctp.listing:listing_reprice',
  accept: 'dev.rctp.deal:offer_accept',
  ship: 'dev.rctp.deal:deal_commit_to_ship',
};
const eur = (amount) => ({ amount, currency: 'EUR' });
const seconds = (since) => `${((performance.now() - since) / 1000).toFixed(1)} s`;

let browser, gateway, seller, page, agent, buyer, grantId, listingId;
const people = [];
const agents = [];

/** Somebody who has enrolled. */
async function enrolled(at, sub) {
  const person = await browser.person(at.url);
  people.push(person);
  await person.go(await at.link(sub));
  await person.click('#enroll');
  await person.see('[data-test=enrolled]');
  return person;
}

/** An agent, whose every answer is kept. */
function playing(...known) {
  const agent = new Agent(...known);
  agents.push(agent);
  return agent;
}

function terms(price, [method, option, payment] = ['shipping', 'standard', 'prepaid']) {
  return {
    price: eur(price),
    fulfillment: { method_type: method, selected_option_id: option },
    payment: { selected_term_id: payment },
  };
}

/** An offer whose acceptance waits for the seller. */
async function asked(title, { at = gateway, by = agent, from = buyer } = {}) {
  const listing = await at.dev('listings', { floor: eur(40_000), list_price: eur(60_000), title });
  const offer = await from.post('/offers', { listing_id: listing.listing_id, deal_terms: terms(55_000) });
  assert.equal(offer.status, 201, JSON.stringify(offer));
  const parked = await by.post(`/offers/${offer.body.offer_id}/accept`);
  assert.equal(parked.status, 202, JSON.stringify(parked));
  assert.match(parked.decision, /^ask/);
  const request = parked.body.approval_request;
  assert.equal(request.hosted_url, `${at.url}/approve/${request.approval_id}`);
  return { ...offer.body, id: request.approval_id, path: `/approve/${request.approval_id}` };
}

const approval = async (id, by = agent) => (await by.get(`/approvals/${id}`)).body;
const offerOf = async ({ offer_id }, by = buyer) => (await by.get(`/offers/${offer_id}`)).body;

/** What the record says of an approval: `ask`, and what came of it. */
async function decisions({ negotiation_id, id }, at = gateway) {
  const entries = await at.record('negotiation', negotiation_id);
  return entries.filter(({ approval_id }) => approval_id === id).map(({ decision }) => decision.decision);
}

/** What a page of ours sends, from within it. */
const send = (path, body, from = page) =>
  from.evaluate(
    async ([to, content]) => {
      const response = await fetch(to, {
        method: content ? 'POST' : 'GET',
        headers: content ? { 'Content-Type': 'application/json' } : {},
        body: content && JSON.stringify(content),
      });
      return { status: response.status, body: response.status === 204 ? null : await response.json() };
    },
    [path, body],
  );

/** The seller's grants, as the page shows them. */
async function grantIds() {
  await seller.go('/grants');
  await seller.see('#active');
  const names = await page.locator('#active article').evaluateAll((all) => all.map(({ dataset }) => dataset.test));
  return names.map((name) => name.replace('grant-', ''));
}

async function approved(path) {
  await seller.go(path);
  await seller.click('#approve');
  await seller.see('[data-test=outcome][data-status=approved]');
}

/** Changes an answer of the gateway's on its way to the page. */
const intercept = (pattern, change) =>
  page.route(pattern, async (route) => {
    const response = await route.fetch();
    const json = await response.json();
    await change(json);
    await route.fulfill({ response, json });
  });

/** Presses Tab until the element has the focus. */
async function tabTo(id) {
  for (let presses = 0; presses < 12; presses += 1) {
    await page.keyboard.press('Tab');
    if ((await seller.focused()) === id) return;
  }
  assert.fail(`Tab does not reach #${id}`);
}

// ---- the scenarios; those that others build on are marked

const scenarios = [];
const scenario = (name, play, basic = false) => scenarios.push({ name, play, basic });

scenario(
  'the seller enrols with the link from the marketplace, which works once',
  async () => {
    seller = await browser.person(gateway.url);
    people.push(seller);
    page = seller.page;
    seller.expected = [[400, '/enroll/options']];
    await seller.go('/enroll');
    await seller.see('[data-test=no-ticket]');
    await seller.look('enroll-no-ticket');

    const link = await gateway.link();
    await seller.go(link);
    await seller.see('#enroll');
    assert.equal(page.url(), `${gateway.url}/enroll`, 'the ticket stays in the address');
    await seller.look('enroll');
    await seller.click('#enroll');
    await seller.see('[data-test=enrolled]');
    await seller.look('enroll-done');
    const [cookie] = await seller.context.cookies();
    assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, 'Strict', '/']);
    const [passkey] = await page.authenticator.passkeys();
    assert.equal(passkey.isResidentCredential, true);

    await seller.go('/signin');
    await seller.go(link);
    await seller.click('#enroll');
    await seller.see('[data-test=ticket-refused]');
    await seller.look('enroll-refused');
  },
  true,
);

scenario(
  'consents to a grant, and allows less than the agent asks for',
  async () => {
    const before = await grantIds();

    const known = gateway.world.agents.seller;
    const keyid = new Agent(gateway, known).keyid;
    const client = await Client.open(gateway, known, keyid);
    await seller.go(
      client.ask({ [SCOPE.create]: 'ask', [SCOPE.reprice]: 'auto', [SCOPE.accept]: 'auto', [SCOPE.ship]: 'auto' }),
    );
    await seller.see('#allow');
    assert.equal(await page.locator(`[data-test="${SCOPE.create}-auto"]`).count(), 0, 'more than was asked for');
    await seller.look('consent');
    await page.check(`[data-test="${SCOPE.accept}-ask"]`);
    await page.check(`[data-test="${SCOPE.ship}-forbid"]`);
    await page.check('[data-test=expiry-7]');
    await seller.look('consent-lowered');
    await seller.click('#allow');
    await page.waitForURL(`${client.redirectUri}?**`);
    const code = (await client.answered()).get('code');
    client.close();
    const tokens = await client.redeem(code);
    const [details] = tokens.authorization_details;
    const tiers = { [SCOPE.create]: 'ask', [SCOPE.reprice]: 'auto', [SCOPE.accept]: 'ask' };
    assert.deepEqual(details, { type: 'dev.rctp.agent_grant', agent_id: 'selling-helper', jkt: keyid, tiers });
    assert.equal(tokens.token_type, 'Bearer');

    agent = playing(gateway, known, tokens.access_token);
    buyer = playing(gateway, gateway.world.agents.buyer);
    const more = (await grantIds()).filter((id) => !before.includes(id));
    assert.equal(more.length, 1);
    [grantId] = more;
  },
  true,
);

scenario('says no to a grant, and strangers are not sent anywhere', async () => {
  const client = await Client.open(gateway, gateway.world.agents.seller, agent.keyid);
  await seller.go(client.ask({ [SCOPE.accept]: 'ask' }));
  await page.check(`[data-test="${SCOPE.accept}-forbid"]`);
  await seller.click('#allow');
  await seller.see('.note.bad');
  await seller.look('consent-nothing');
  await seller.click('#deny');
  await page.waitForURL(`${client.redirectUri}?**`);
  assert.equal((await client.answered()).get('error'), 'access_denied');
  client.close();

  seller.expected = [[400, '/oauth/authorize']];
  await seller.go('/oauth/authorize?client_id=unknown&redirect_uri=https%3A%2F%2Fevil.example');
  await seller.see('[data-test=unanswerable]');
  await seller.look('consent-error');
});

scenario(
  'edits the floor that the agent proposed, and approves the listing; the agent learns a commitment',
  async () => {
    await seller.go('/approve');
    await seller.see('[data-test=empty]');
    await seller.look('list-empty');

    const parked = await agent.post('/listings', {
      title: 'Oak desk, 1960s',
      description: 'Solid oak, restored.\nA few scratches on the left side.',
      category: 'furniture',
      list_price: eur(LIST_PRICE),
      term_set: 'goods-1',
      proposed_terms: { floor: eur(PROPOSED) },
    });
    assert.equal(parked.status, 202, JSON.stringify(parked));
    const id = parked.body.approval_request.approval_id;
    assert.equal((await approval(id)).status, 'pending');

    // The list is looked at again when the page is.
    await page.evaluate(() => document.dispatchEvent(new Event('visibilitychange')));
    await seller.see(`#waiting #open-${id}`);
    await seller.click(`#open-${id}`);
    await seller.see('#term-floor');
    assert.equal(await page.inputValue('#term-floor'), '512345.67');
    await seller.look('terms');

    seller.expected = [[422, '/terms']];
    await page.fill('#term-floor', '1,000,000');
    await seller.click('#approve');
    await seller.see('#error-floor:not([hidden])');
    await seller.look('terms-errors');
    await page.fill('#term-floor', '543,210.98');
    await page.fill('#term-deliver_within_days', '21');
    await seller.click('#approve');
    await seller.see('[data-test=outcome][data-status=approved]');
    await seller.look('outcome-listed');

    const { status, decision, result } = await approval(id);
    assert.deepEqual([status, decision.decision], ['approved', 'auto']);
    assert.deepEqual(Object.keys(result).sort(), ['listing_id', 'term_set', 'terms_commitment']);
    assert.equal(result.term_set, 'goods-1');
    assert.match(result.terms_commitment, /^sha-256:/);
    listingId = result.listing_id;

    const listing = (await buyer.get(`/listings/${listingId}`)).body;
    assert.deepEqual([listing.state, listing.terms_commitment], ['active', result.terms_commitment]);
    assert.equal(listing.public_terms.deliver_within_days, 21);
    assert.equal(listing.public_terms.floor, undefined);
  },
);

scenario('an offer that asks is approved, and becomes a checkout and a deal', async () => {
  const choice = ['pickup', 'in_person', 'held_funds'];
  // Above what was proposed, below what was chosen: the seller's word counts.
  const low = await buyer.post('/offers', { listing_id: listingId, deal_terms: terms(53_000_000, choice) });
  assert.deepEqual([low.status, low.body.error], [422, 'below_floor']);
  const offer = await buyer.post('/offers', { listing_id: listingId, deal_terms: terms(60_000_000, choice) });
  assert.equal(offer.status, 201, JSON.stringify(offer));
  const parked = await agent.post(`/offers/${offer.body.offer_id}/accept`);
  assert.equal(parked.status, 202, JSON.stringify(parked));
  const id = parked.body.approval_request.approval_id;
  assert.equal((await offerOf(offer.body)).state, 'awaiting_approval');

  await seller.go('/approve');
  await seller.see('#waiting');
  await seller.look('list');
  await seller.click(`#open-${id}`);
  await seller.see('#approve');
  await seller.look('approve-offer');
  await seller.click('#approve');
  await seller.see('[data-test=outcome][data-status=approved]');
  await seller.look('outcome-accepted');

  const { status, result } = await approval(id);
  const { state, checkout } = await offerOf(offer.body);
  assert.deepEqual([status, state, result.state], ['approved', 'accepted', 'accepted']);
  assert.equal(result.checkout, checkout);
  const deal = await buyer.post('/deals', { checkout });
  assert.equal(deal.status, 201, JSON.stringify(deal));
  assert.equal((await buyer.get(`/listings/${listingId}`)).body.state, 'sold');
});

scenario('declines', async () => {
  const ask = await asked('A piano');
  await seller.go(ask.path);
  const answers = seller.counter('/response');
  await page.dblclick('#decline');
  await seller.see('[data-test=outcome][data-status=declined]');
  assert.equal(answers.count, 1);
  await seller.look('outcome-declined');
  assert.equal((await approval(ask.id)).status, 'declined');
  assert.equal((await offerOf(ask)).state, 'declined');
  assert.deepEqual(await decisions(ask), ['ask', 'forbid']);
});

scenario('a passkey that is not given sends nothing', async () => {
  const ask = await asked('A cello');
  await seller.go(ask.path);
  const answers = seller.counter('/response');
  await page.authenticator.send('setUserVerified', { isUserVerified: false });
  await seller.click('#approve');
  await seller.see('#trouble .note.bad');
  assert.match(await seller.text('#trouble'), /cancelled/);
  assert.equal(answers.count, 0);
  await page.authenticator.send('setUserVerified', { isUserVerified: true });
  await seller.click('#approve');
  await seller.see('[data-test=outcome][data-status=approved]');
});

scenario("an agent's words are words, and nothing else", async () => {
  const title = '<img src=x onerror=alert(1)> {price} \u202e"desk"';
  const ask = await asked(title);
  await seller.go('/approve');
  await seller.see(`#open-${ask.id}`);
  assert((await seller.text(`#open-${ask.id}`)).includes(title));
  await seller.go(ask.path);
  await seller.see('#approve');
  assert((await seller.text('h1')).includes(title));
  assert.equal(await page.locator('main img').count(), 0);
  await seller.look('approve-odd-title');
  await seller.click('#decline');
  await seller.see('[data-test=outcome][data-status=declined]');
});

scenario('a second click and a repeated answer carry out nothing more', async () => {
  const ask = await asked('A sailing boat');
  await seller.go(ask.path);
  await seller.see('#approve');
  const answers = seller.counter('/response');
  const answer = page.waitForRequest('**/response');
  await page.dblclick('#approve');
  await seller.see('[data-test=outcome][data-status=approved]');
  assert.equal(answers.count, 1);
  const { checkout } = await offerOf(ask);

  const again = await send(`/approvals/${ask.id}/response`, (await answer).postDataJSON());
  assert.deepEqual([again.status, again.body.approval.status], [200, 'approved']);
  seller.expected = [[409, '/response']];
  assert.equal((await send(`/approvals/${ask.id}/response`, { decision: 'decline' })).status, 409);
  assert.equal((await offerOf(ask)).checkout, checkout);
  assert.deepEqual(await decisions(ask), ['ask', 'auto']);
});

scenario('two tabs that approve at once carry it out once', async () => {
  const ask = await asked('A greenhouse');
  const [passkey] = await page.authenticator.passkeys();
  // One authenticator has one counter; the second tab's is ahead, as if it were asked last.
  const other = await seller.tab({ ...passkey, signCount: passkey.signCount + 100 });
  await Promise.all([page, other].map((tab) => tab.goto(ask.path)));
  await Promise.all([page, other].map((tab) => seller.see('#approve', tab)));
  // Both answers are ready before either goes out.
  let ready = 0;
  let release;
  const both = new Promise((resolve) => (release = resolve));
  await seller.context.route('**/response', async (route) => {
    if ((ready += 1) === 2) release();
    await both;
    await route.continue();
  });
  await Promise.all([page, other].map((tab) => seller.click('#approve', tab)));
  await Promise.all([page, other].map((tab) => seller.see('[data-test=outcome][data-status=approved]', tab)));
  await seller.context.unroute('**/response');
  assert.equal(ready, 2);
  assert.deepEqual(await decisions(ask), ['ask', 'auto']);
  const [after] = await other.authenticator.passkeys();
  await page.authenticator.hold(after);
  await other.close();
});

scenario('a wrong key approves nothing', async () => {
  const ask = await asked('A telescope');
  const [passkey] = await page.authenticator.passkeys();
  const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
  const key = privateKey.export({ type: 'pkcs8', format: 'der' }).toString('base64');
  await page.authenticator.hold({ ...passkey, privateKey: key });
  seller.expected = [[401, '/response']];
  await seller.go(ask.path);
  await seller.click('#approve');
  await seller.see('#trouble .note.bad');
  assert.match(await seller.text('#trouble'), /not accepted/);
  await seller.look('approve-wrong-key');

  // Somebody else's passkey, which is known here, though not for this seller.
  const stranger = await enrolled(gateway, 'sub_of_a_passkey');
  const [theirs] = await stranger.page.authenticator.passkeys();
  await page.authenticator.hold(theirs);
  const ours = [{ type: 'public-key', id: Buffer.from(theirs.credentialId, 'base64').toString('base64url') }];
  await intercept('**/options', ({ publicKey }) => (publicKey.allowCredentials = ours));
  await seller.go(ask.path);
  await seller.click('#approve');
  await seller.see('#trouble .note.bad');
  assert.match(await seller.text('#trouble'), /not accepted/);
  await page.unroute('**/options');
  assert.equal((await approval(ask.id)).status, 'pending');
  assert.deepEqual(await decisions(ask), ['ask']);

  await page.authenticator.hold(passkey);
  await seller.click('#approve');
  await seller.see('[data-test=outcome][data-status=approved]');
});

scenario('a tampered challenge approves nothing', async () => {
  const [ask, other] = [await asked('A violin'), await asked('A bow')];
  seller.expected = [[401, '/response']];
  // The passkey is made to sign what another approval asks, and then what no approval asks.
  await seller.go(ask.path);
  const { publicKey } = (await send(`/approve/${other.id}/options`, {})).body;
  for (const challenge of [publicKey.challenge, Buffer.alloc(32, 7).toString('base64url')]) {
    let honest;
    await intercept(`**/approve/${ask.id}/options`, (options) => {
      honest = options.publicKey.challenge;
      options.publicKey.challenge = challenge;
    });
    await seller.go(ask.path);
    await seller.click('#approve');
    await seller.see('#trouble .note.bad');
    assert.match(await seller.text('#trouble'), /not accepted/);
    assert.notEqual(honest, challenge);
    await page.unroute(`**/approve/${ask.id}/options`);
  }
  for (const each of [ask, other]) {
    assert.equal((await approval(each.id)).status, 'pending');
    assert.equal((await offerOf(each)).state, 'awaiting_approval');
    assert.deepEqual(await decisions(each), ['ask']);
  }
  await approved(ask.path);
  await seller.go(other.path);
  await seller.click('#decline');
  await seller.see('[data-test=outcome][data-status=declined]');
});

scenario("another seller's session finds nothing and changes nothing", async () => {
  const ask = await asked('A wardrobe');
  const other = await enrolled(gateway, 'sub_another');
  other.expected = [
    [404, '/request'],
    [404, '/options'],
    [404, '/response'],
    [404, '/revoke'],
  ];
  await other.go(ask.path);
  await other.see('[data-test=not-found]');
  await other.look('approve-missing');
  for (const [path, body] of [
    [`/approve/${ask.id}/request`],
    [`/approve/${ask.id}/options`, {}],
    [`/approvals/${ask.id}/response`, { decision: 'decline' }],
    [`/grants/${grantId}/revoke`, {}],
  ])
    assert.equal((await send(path, body, other.page)).status, 404, path);
  await other.go('/approve');
  await other.see('[data-test=empty]');
  await other.go('/grants');
  await other.see('[data-test=empty]');
  await other.look('grants-empty');
  assert.equal((await approval(ask.id)).status, 'pending');
  await approved(ask.path);
});

scenario('signs out, and in again', async () => {
  seller.expected = [[401, '/pending']];
  await seller.go('/approve');
  await seller.click('#signout');
  await page.waitForURL('**/signin');
  await seller.see('#signin');
  await seller.look('signin');
  assert.equal((await send('/approve/pending')).status, 401);
  await seller.go('/signin?return_to=/grants');
  await seller.click('#signin');
  await page.waitForURL('**/grants');
  await seller.see('#active');
});

scenario('signs in again where the session ends halfway', async () => {
  const ask = await asked('A set of chairs');
  await seller.go(ask.path);
  await seller.see('#approve');
  await seller.context.clearCookies();
  seller.expected = [[401, '/options']];
  await seller.click('#approve');
  await seller.see('#trouble #signin');
  await seller.look('approve-session-ended');
  await seller.click('#signin');
  await seller.see('#trouble .note.good');
  await seller.click('#approve');
  await seller.see('[data-test=outcome][data-status=approved]');
});

scenario("is sent to the marketplace's own login where there is one", async () => {
  const cookies = await seller.context.cookies();
  await seller.context.clearCookies();
  seller.expected = [[401, '/pending']];
  await page.route('**/approve?*', async (route) => {
    const response = await route.fetch();
    const html = (await response.text()).replace('"signin_url":""', '"signin_url":"https://market.example/login?a=b"');
    await route.fulfill({ response, body: html });
  });
  await seller.go('/approve?from=mail');
  await seller.see('a#signin');
  const to = new URL(await page.getAttribute('#signin', 'href'));
  assert.equal(to.origin + to.pathname, 'https://market.example/login');
  assert.deepEqual(Object.fromEntries(to.searchParams), { a: 'b', return_to: '/approve?from=mail' });
  await seller.look('signin-own-login');
  await page.unroute('**/approve?*');
  await seller.context.addCookies(cookies);
});

scenario('approves with the keyboard alone', async () => {
  const ask = await asked('A rowing machine');
  await seller.go('/approve');
  await seller.see(`#waiting #open-${ask.id}`);
  await tabTo(`open-${ask.id}`);
  await page.keyboard.press('Enter');
  await seller.see('#approve');
  await tabTo('approve');
  await seller.look('approve-focus');
  await page.keyboard.press('Enter');
  await seller.see('[data-test=outcome][data-status=approved]');
  await tabTo('to-list');
  await page.keyboard.press('Enter');
  await seller.see(`#answered [data-test=approval-${ask.id}]`);
  assert.equal((await approval(ask.id)).status, 'approved');
});

scenario('takes the grant back: the next request is refused, and what waits is not carried out', async () => {
  const ask = await asked('A bookcase');
  await seller.go('/grants');
  await seller.see('#active');
  await seller.look('grants');
  await seller.click(`#revoke-${grantId}`);
  await seller.see(`#confirm-${grantId}`);
  await seller.look('grants-confirm');
  await seller.click(`#confirm-${grantId}`);
  await page.waitForSelector(`[data-test=grant-${grantId}]`, { state: 'detached' });
  const refused = await agent.post(`/listings/${ask.listing_id}/price`, { price: eur(59_000) });
  assert.deepEqual([refused.status, refused.body.error], [403, 'grant_revoked']);

  await seller.go(ask.path);
  await seller.click('#approve');
  await seller.see('[data-test=outcome][data-status=stopped]');
  await seller.look('outcome-stopped');
  assert.deepEqual(await decisions(ask), ['ask', 'forbid']);
  await seller.go('/approve');
  await seller.see(`#answered [data-test=approval-${ask.id}] .pill.stopped`);
  await seller.look('list-answered');
});

scenario('silence until the end is a no', async () => {
  const hasty = await Gateway.start('[limits]\napproval_seconds = 4');
  try {
    const person = await enrolled(hasty);
    const grant = await hasty.dev('grants', { tier: 'ask' });
    const by = playing(hasty, hasty.world.agents.seller, grant.access_token);
    const from = playing(hasty, hasty.world.agents.buyer);
    const ask = await asked('A barometer', { at: hasty, by, from });
    await person.go(ask.path);
    await person.see('[data-test=outcome][data-status=expired]');
    await person.look('outcome-expired');
    assert.equal((await approval(ask.id, by)).status, 'expired');
    assert.equal((await offerOf(ask, from)).state, 'expired');
    person.expected = [
      [409, '/response'],
      [409, '/options'],
    ];
    for (const [path, body] of [
      [`/approve/${ask.id}/options`, {}],
      [`/approvals/${ask.id}/response`, { decision: 'decline' }],
    ])
      assert.equal((await send(path, body, person.page)).status, 409, path);
    assert.deepEqual(await decisions(ask, hasty), ['ask']);
    await person.go('/approve');
    await person.see(`#answered [data-test=approval-${ask.id}][data-status=expired]`);
    await person.context.close();
  } finally {
    assert.equal(await hasty.stop(), 0);
  }
});

scenario(
  'no floor has left the gateway: in no answer to an agent, no entry of the record, no line of the log',
  async () => {
    const chains = await Promise.all([gateway.record('listing', listingId), gateway.record('gateway', 'own')]);
    const said = [...agents.map(({ heard }) => heard), gateway.said, JSON.stringify(chains)].join('\n');
    assert.match(said, new RegExp(listingId));
    for (const floor of [PROPOSED, CHOSEN]) {
      const written = new Intl.NumberFormat('en', { minimumFractionDigits: 2 }).format(floor / 100);
      for (const form of [String(floor), (floor / 100).toFixed(2), written]) assert(!said.includes(form), form);
    }
  },
);

// ---- the run

const began = performance.now();
const LIMIT = 300_000;
setTimeout(() => {
  console.log(`browser suite: still not done after ${LIMIT / 1000} s`);
  process.exit(1);
}, LIMIT).unref();
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) process.once(signal, () => process.exit(130));
const words = process.argv.slice(2);
const screenshots = process.env.RCTP_SCREENSHOTS ?? (await mkdtemp(join(tmpdir(), 'rctp-screenshots-')));
console.log(`screenshots are in ${screenshots}`);
[browser, gateway] = await Promise.all([Browser.launch(screenshots), Gateway.start()]);

let played = 0;
let failed;
for (const { name, play, basic } of scenarios) {
  if (words.length && !basic && !words.some((word) => name.includes(word))) continue;
  const from = performance.now();
  for (const person of people) person.expected = [];
  try {
    await play();
    assert.deepEqual(
      people.flatMap(({ complaints }) => complaints),
      [],
      'the browser complained',
    );
    console.log(`  ok    ${name} (${seconds(from)})`);
    played += 1;
  } catch (error) {
    failed = name;
    console.log(`  FAIL  ${name} (${seconds(from)})\n${error.stack}`);
    console.log(people.flatMap(({ complaints }) => complaints).join('\n'));
    console.log(
      gateway.said
        .split('\n')
        .filter((line) => /^\d{4}-/.test(line))
        .slice(-8)
        .join('\n'),
    );
    await page?.screenshot({ path: join(screenshots, 'FAILED.png'), fullPage: true }).catch(() => {});
    break;
  }
}
await browser.close();
const code = await gateway.stop();
if (!failed && code !== 0) failed = `stopping the gateway, which exited with ${code}`;

if (failed) console.log(`browser suite: failed at: ${failed}`);
else console.log(`played in ${seconds(began)}\nbrowser suite: ${played} scenarios, all passed`);
process.exit(failed ? 1 : 0);
