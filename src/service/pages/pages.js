// What every hosted page shares: texts, elements, requests, money, passkeys and the sign-in panel.

const texts = JSON.parse(document.getElementById('texts').textContent);
const main = document.getElementById('main');
const status = document.getElementById('status');
const tongue = (tag) => tag.split('-')[0];

document.documentElement.lang = texts.lang;
document.documentElement.dir = texts.dir;
export const locale = navigator.languages.find((tag) => tongue(tag) === tongue(texts.lang)) ?? texts.lang;

export const has = (key) => Object.hasOwn(texts, key);
export const t = (key, values = {}) => (texts[key] ?? key).replace(/\{(\w+)\}/g, (all, name) => values[name] ?? all);

/** A text whose values are isolated, so that another party's words cannot reorder it. */
export const rich = (key, values = {}) =>
  (texts[key] ?? key).split(/\{(\w+)\}/).map((part, at) => (at % 2 ? el('bdi', {}, String(values[part] ?? '')) : part));

export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === 'function') node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, '');
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(9).filter((child) => child != null && child !== false && child !== ''));
  return node;
}

let shown = false;

/** Replaces the page's content and leaves the focus alone. */
export function swap(...nodes) {
  main.replaceChildren(...nodes.filter(Boolean));
  main.removeAttribute('aria-busy');
  document.title = `${main.querySelector('h1').textContent} – ${t('marketplace')}`;
}

/** Replaces the page's content; its heading takes the focus, except when the page has just been opened. */
export function show(...nodes) {
  swap(...nodes);
  if (shown) {
    const heading = main.querySelector('h1');
    heading.tabIndex = -1;
    heading.focus();
  }
  shown = true;
}

let fading;

/** Says what is going on, or what has just happened, which then fades. */
export function say(text, fleeting) {
  clearTimeout(fading);
  status.textContent = text;
  if (fleeting) fading = setTimeout(() => say(''), 5000);
}

export const note = (kind, ...content) =>
  el('p', { class: `note ${kind}`, role: kind === 'bad' ? 'alert' : null }, ...content);

/** A page that says one thing. */
export const message = (id, title, text, ...more) =>
  show(el('section', { class: 'card plain', 'data-test': id }, el('h1', {}, title), el('p', {}, text), ...more));

export const problem = (error, retry) =>
  message('problem', t('problem_title'), why(error), button('retry', t('retry'), 'primary', retry));

let working = false;

/** A button that does nothing while it, or any other, is still at work. */
export function button(id, label, kind, act) {
  const node = el('button', { type: 'button', id, class: kind, click: () => once(node, act) }, label);
  return node;
}

export async function once(node, act) {
  if (working) return;
  const mark = (name, on, nodes) =>
    nodes.forEach((each) => (on ? each.setAttribute(name, 'true') : each.removeAttribute(name)));
  const all = [...document.querySelectorAll('button')];
  working = true;
  mark('aria-disabled', true, all);
  mark('aria-busy', true, [node]);
  try {
    await act();
  } finally {
    working = false;
    mark('aria-disabled', false, all);
    mark('aria-busy', false, [node]);
  }
}

export class Failure extends Error {
  constructor(code, body) {
    super(body.message ?? `${code}`);
    this.status = code;
    this.body = body;
  }
}

let skew = 0;

/** The server's time. */
export const now = () => Date.now() + skew;

/** GET, or POST where there is a body. Status 0 is a server out of reach. */
export async function api(path, body) {
  const options = {
    credentials: 'same-origin',
    cache: 'no-store',
    redirect: 'error',
    signal: AbortSignal.timeout(30000),
  };
  if (body)
    Object.assign(options, {
      method: 'POST',
      headers: { 'Content-Type': 'application/json' },
      body: JSON.stringify(body),
    });
  let response;
  let data = {};
  try {
    response = await fetch(path, options);
    if (response.status !== 204) data = await response.json();
  } catch {
    if (!response || response.ok) throw new Failure(0, {});
  }
  const ahead = Date.parse(response.headers.get('date')) - Date.now();
  if (Math.abs(ahead) > 2000) skew = ahead;
  if (!response.ok) throw new Failure(response.status, data);
  return data;
}

const PASSKEY_ERRORS = {
  AbortError: 'cancelled',
  InvalidStateError: 'exists',
  NotAllowedError: 'cancelled',
  NotSupportedError: 'unsupported',
  SecurityError: 'wrong_site',
};

export function why(error) {
  if (!(error instanceof Failure)) return t(`passkey_${PASSKEY_ERRORS[error.name] ?? 'failed'}`);
  if (error.status === 0) return t('error_network');
  return t(error.status >= 500 || error.status === 429 ? 'error_unavailable' : 'error_refused');
}

// Minor units by ISO 4217, which Intl does not follow for every currency; all others have two.
const DIGITS = {
  0: 'BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF',
  3: 'BHD IQD JOD KWD LYD OMR TND',
  4: 'CLF UYW',
};
export const digits = (currency) => Number(Object.keys(DIGITS).find((n) => DIGITS[n].includes(currency)) ?? 2);

/** Minor units as a decimal number in text, exact. */
export function decimal(amount, currency) {
  const n = digits(currency);
  const text = String(amount).padStart(n + 1, '0');
  return n ? `${text.slice(0, -n)}.${text.slice(-n)}` : text;
}

export function money({ amount, currency }) {
  const n = digits(currency);
  const format = { style: 'currency', currency, minimumFractionDigits: n, maximumFractionDigits: n };
  return new Intl.NumberFormat(locale, format).format(decimal(amount, currency));
}

export const moment = (time) =>
  new Intl.DateTimeFormat(locale, { dateStyle: 'medium', timeStyle: 'short' }).format(new Date(time));

/** How long it still is, in two units. */
export function left(time) {
  const seconds = Math.max(0, Math.ceil((Date.parse(time) - now()) / 1000));
  const units = [
    ['day', Math.floor(seconds / 86400)],
    ['hour', Math.floor(seconds / 3600) % 24],
    ['minute', Math.floor(seconds / 60) % 60],
    ['second', seconds % 60],
  ];
  const first = units.findIndex(([, n], at) => n > 0 || at === 3);
  return units
    .slice(first, first + 2)
    .map(([unit, n]) => measured(n, unit, 'short'))
    .join(' ');
}

export const measured = (n, unit, unitDisplay = 'long') =>
  new Intl.NumberFormat(locale, { style: 'unit', unit, unitDisplay }).format(n);

/** A marketplace's identifier in words. */
export function named(id) {
  const words = id.replace(/[_.:-]+/g, ' ').trim();
  return texts[`choice_${id}`] ?? words.charAt(0).toUpperCase() + words.slice(1);
}

export const passkeys = Boolean(window.PublicKeyCredential && navigator.credentials);

const bytes = (text) => Uint8Array.from(atob(text.replaceAll('-', '+').replaceAll('_', '/')), (c) => c.charCodeAt(0));
const base64url = (buffer) =>
  btoa(Array.from(new Uint8Array(buffer), (b) => String.fromCharCode(b)).join(''))
    .replaceAll('+', '-')
    .replaceAll('/', '_')
    .replaceAll('=', '');

function parsed(kind, json) {
  try {
    return PublicKeyCredential[`parse${kind}OptionsFromJSON`](json);
  } catch {
    const options = { ...json, challenge: bytes(json.challenge) };
    if (json.user) options.user = { ...json.user, id: bytes(json.user.id) };
    for (const list of ['allowCredentials', 'excludeCredentials']) {
      if (json[list]) options[list] = json[list].map((each) => ({ ...each, id: bytes(each.id) }));
    }
    return options;
  }
}

function written(credential) {
  try {
    return credential.toJSON();
  } catch {
    const { id, type, rawId, authenticatorAttachment, response } = credential;
    const answer = {};
    for (const name of ['clientDataJSON', 'attestationObject', 'authenticatorData', 'signature', 'userHandle']) {
      if (response[name]) answer[name] = base64url(response[name]);
    }
    if (response.getTransports) answer.transports = response.getTransports();
    return {
      id,
      type,
      rawId: base64url(rawId),
      authenticatorAttachment: authenticatorAttachment ?? undefined,
      clientExtensionResults: credential.getClientExtensionResults(),
      response: answer,
    };
  }
}

export const newPasskey = async (json) =>
  written(await navigator.credentials.create({ publicKey: parsed('Creation', json) }));
export const askPasskey = async (json) =>
  written(await navigator.credentials.get({ publicKey: parsed('Request', json) }));

/** The marketplace's own login, which sends the browser back to a path here. */
function login(back) {
  const url = new URL(t('signin_url'), location.origin);
  url.searchParams.set('return_to', back);
  return url.href;
}

/** Where to come back to: this page, unless it says otherwise. */
const here = () => location.pathname + location.search;

/** Signs in with the passkey, and goes on with `then`; or links to the marketplace's own login. */
export function signIn(then, { level = 'h1', title = t('signin_title'), text, back = here() } = {}) {
  if (t('signin_url'))
    return el(
      'section',
      { class: 'card plain', 'data-test': 'signin' },
      el(level, {}, title),
      el('p', {}, text ?? t('signin_link_text')),
      // Within a page that somebody has filled in, the login opens beside it.
      el(
        'a',
        { id: 'signin', class: 'primary', href: login(back), target: level === 'h1' ? null : '_blank' },
        t('signin_link'),
      ),
    );
  const trouble = el('div', { 'data-test': 'signin-error' });
  const act = async () => {
    trouble.replaceChildren();
    say(t('passkey_waiting'));
    try {
      const { publicKey, state } = await api('/signin/options', {});
      await api('/signin/complete', { state, credential: await askPasskey(publicKey) });
    } catch (error) {
      trouble.replaceChildren(
        note('bad', error.status === 401 || error.status === 400 ? t('signin_refused') : why(error)),
      );
      return;
    } finally {
      say('');
    }
    await then();
  };
  return el(
    'section',
    { class: 'card plain', 'data-test': 'signin' },
    el(level, {}, title),
    el('p', {}, text ?? t('signin_text')),
    trouble,
    passkeys ? button('signin', t('signin_button'), 'primary', act) : note('bad', t('passkey_unsupported')),
  );
}

/** The links of the page's head, and signing out, unless that is the marketplace's own affair. */
export function links(...items) {
  const out = button('signout', t('signout'), 'link', async () => {
    try {
      await api('/signout', {});
      location.assign('/signin');
    } catch (error) {
      say(why(error), true);
    }
  });
  document
    .getElementById('nav')
    .replaceChildren(
      ...items.filter(([, to]) => to).map(([key, to]) => el('a', { href: to, id: `nav-${key}` }, t(`nav_${key}`))),
      t('signin_url') ? '' : out,
    );
}
