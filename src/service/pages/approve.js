// One approval: what is asked, the terms form of the listing verbs, the answer, and what came of it.

import {
  api,
  askPasskey,
  button,
  decimal,
  digits,
  el,
  has,
  left,
  locale,
  measured,
  message,
  moment,
  money,
  named,
  note,
  now,
  passkeys,
  problem,
  rich,
  say,
  show,
  signIn,
  t,
  why,
} from './pages.js';

const page = location.pathname.replace(/\/$/, '');
const id = page.split('/').pop();
const CHOICE = /^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$/;
const MECHANISMS = ['http_signature', 'oauth', 'api_key', 'mtls'];

let open = false;
let timer;

async function load() {
  try {
    view(await api(`${page}/request`));
  } catch (error) {
    open = false;
    if (error.status === 401) show(signIn(load));
    else if (error.status === 404 || error.status === 403)
      message('not-found', t('missing_title'), t('missing_text'), toList());
    else problem(error, load);
  }
}

/** Shows what became of it meanwhile; while it still waits, a half-filled form is left alone. */
async function check() {
  const data = open && (await api(`${page}/request`).catch(() => null));
  if (data && open && data.status !== 'pending') view(data);
}

const toList = () => el('p', {}, el('a', { href: '/approve', id: 'to-list' }, t('to_list')));

function view(data) {
  clearInterval(timer);
  open = data.status === 'pending';
  if (open) pending(data);
  else outcome(data.approval_request, data.status, data.decision);
}

// ---- what is asked

const priceOf = ({ deal_terms, price }) => deal_terms?.price ?? price;

function heading(key, { display, action }) {
  const price = priceOf(display) ?? display.list_price;
  const values = { title: display.title ?? t('untitled'), price: price ? money(price) : '' };
  return el('h1', {}, rich(`${key}_${action}`, values));
}

function facts({ display }, all) {
  const { deal_terms, list_price } = display;
  const price = priceOf(display);
  const rows = [
    ['price', price && money(price), 'amount'],
    ['list_price', list_price && money(list_price), price ? '' : 'amount'],
    ['title', all && display.title],
    ['category', display.category && named(display.category)],
    ['description', display.description, 'prose'],
    ['question', display.question, 'prose'],
    ['answer', display.answer, 'prose'],
    [
      'fulfillment',
      deal_terms && option(deal_terms.fulfillment.method_type, deal_terms.fulfillment.selected_option_id),
    ],
    ['payment', deal_terms && named(deal_terms.payment.selected_term_id)],
  ];
  return el(
    'dl',
    { class: 'facts' },
    rows
      .filter(([, value]) => value)
      .map(([name, value, kind]) =>
        el(
          'div',
          { 'data-test': `fact-${name}` },
          el('dt', {}, t(`fact_${name}`)),
          el('dd', { class: kind || null }, el(kind === 'prose' ? 'div' : 'bdi', { dir: 'auto' }, value)),
        ),
      ),
  );
}

const option = (method, chosen) => t('option_of', { method: named(method), option: named(chosen) });

function asker({ display: { operator, legal_entity, agent } }) {
  let host = operator;
  try {
    host = new URL(operator).host;
  } catch {
    /* shown as it is */
  }
  return el(
    'section',
    { class: 'asker', 'aria-labelledby': 'asker-title', 'data-test': 'asker' },
    el('h2', { id: 'asker-title' }, t('asker_title')),
    el('p', { class: 'who' }, el('bdi', {}, legal_entity ?? (host || operator))),
    el(
      'dl',
      { class: 'small' },
      el('div', {}, el('dt', {}, t('asker_operator')), el('dd', {}, el('bdi', { class: 'code' }, operator))),
      agent && el('div', {}, el('dt', {}, t('asker_agent')), el('dd', {}, el('bdi', { class: 'code' }, agent))),
    ),
  );
}

function clock(expires) {
  const rest = el('span', { id: 'time-left', role: 'timer' });
  let warned = false;
  let late = 0;
  const tick = () => {
    const ms = Date.parse(expires) - now();
    rest.textContent = t('time_left', { left: left(expires) });
    rest.classList.toggle('soon', ms < 60000);
    if (ms < 60000 && ms > 0 && !warned) {
      warned = true;
      say(t('time_short'), true);
    }
    if (ms <= 0 && late++ % 5 === 0) check();
  };
  timer = setInterval(tick, 1000);
  tick();
  return el('p', { class: 'clock' }, rest, el('span', { class: 'until' }, t('until', { time: moment(expires) })));
}

// ---- what is answered

function pending(data) {
  const request = data.approval_request;
  const form = data.term_set && termsForm(data);
  const trouble = el('div', { id: 'trouble' });
  const complain = (...nodes) => trouble.replaceChildren(...nodes);

  const respond = async (answer) => {
    const { approval } = await api(`/approvals/${id}/response`, answer);
    clearInterval(timer);
    open = false;
    outcome(request, approval.status, approval.decision);
  };

  const attempt = async (act) => {
    complain();
    try {
      await act();
    } catch (error) {
      await failed(error);
    } finally {
      say('');
    }
  };

  const failed = (error) => {
    if (error.status === 409 || error.status === 404) return load();
    if (error.status === 401) {
      const ended = error.body.error !== 'signature_invalid';
      const again = () => {
        complain(note('good', t('signed_in_again')));
        document.getElementById('approve').focus();
      };
      return complain(
        ended
          ? signIn(again, { level: 'h2', title: t('ended_title'), text: t('ended_text') })
          : note('bad', t('passkey_refused')),
      );
    }
    if (error.status === 422 && form && error.body.fields) return form.refuse(error.body.fields);
    return complain(note('bad', why(error)));
  };

  const approve = () =>
    attempt(async () => {
      const terms = form?.read();
      if (form && !terms) return;
      say(t('working'));
      const { publicKey, terms_commitment } = form
        ? await api(`${page}/terms`, { terms })
        : await api(`${page}/options`, {});
      say(t('passkey_waiting'));
      form?.hold(true);
      let credential;
      try {
        credential = await askPasskey(publicKey);
        say(t('working'));
        await respond({ decision: 'approve', credential, ...(form && { terms_commitment }) });
      } finally {
        form?.hold(false);
      }
    });

  const decline = () =>
    attempt(async () => {
      say(t('working'));
      await respond({ decision: 'decline' });
    });

  show(
    el(
      'article',
      { class: 'card ask', 'data-test': 'pending', 'data-action': request.action },
      clock(request.expires_at),
      heading('ask', request),
      el('p', { class: 'lead' }, t(`effect_${request.action}`)),
      facts(request),
      asker(request),
      form?.node,
      el(
        'section',
        { class: 'decide', 'aria-label': t('decide') },
        passkeys ? null : note('bad', t('passkey_unsupported')),
        trouble,
        el(
          'div',
          { class: 'buttons' },
          passkeys && button('approve', t('approve'), 'primary', approve),
          button('decline', t('decline'), 'secondary', decline),
        ),
        el('p', { class: 'fine' }, t('silence')),
      ),
    ),
    toList(),
  );
}

function outcome(request, status, decision) {
  say('');
  const stopped = status === 'approved' && decision?.reason;
  const state = stopped ? 'stopped' : status;
  const text = stopped
    ? t(has(`reason_${decision.reason}`) ? `reason_${decision.reason}` : 'reason_other')
    : t(has(`${status}_${request.action}`) ? `${status}_${request.action}` : `${status}_text`);
  show(
    el(
      'article',
      { class: `card outcome ${state}`, 'data-test': 'outcome', 'data-status': state },
      el('h1', {}, t(`${state}_title`)),
      el('p', { class: 'lead' }, text),
      el('h2', {}, t(`verb_${request.action}`)),
      facts(request, true),
    ),
    toList(),
  );
}

// ---- the terms form, from the term set's definition

class Wrong extends Error {
  constructor(rule) {
    super(rule);
    this.rule = rule;
  }
}

function termsForm({ term_set, prefill, list_price }) {
  const fields = term_set.terms.map((term) => field(term, term_set, prefill[term.name], list_price));
  const summary = el('div', { id: 'term-errors' });
  const node = el(
    'form',
    { id: 'terms', novalidate: true, 'aria-labelledby': 'terms-title', submit: (event) => event.preventDefault() },
    el('h2', { id: 'terms-title' }, t('terms_title')),
    el('p', {}, t('terms_text')),
    summary,
    fields.map((each) => each.node),
  );

  const refuse = (violations) => {
    const mine = violations.map(({ term, rule, message: text }) => {
      const at = fields.find((each) => each.name === term);
      return { at, text: has(`rule_${rule}`) && at ? at.explain(rule) : (text ?? t('rule_other')) };
    });
    for (const each of fields)
      each.complain(
        mine
          .filter(({ at }) => at === each)
          .map(({ text }) => text)
          .join(' '),
      );
    const lines = mine.map(({ at, text }) =>
      el(
        'li',
        {},
        at
          ? el(
              'a',
              { href: `#${at.target.id}`, click: (event) => (event.preventDefault(), at.target.focus()) },
              `${at.label}: ${text}`,
            )
          : text,
      ),
    );
    summary.replaceChildren(
      el('div', { class: 'note bad', role: 'alert' }, el('p', {}, t('errors_title')), el('ul', {}, lines)),
    );
    (mine.find(({ at }) => at)?.at.target ?? summary).focus();
  };

  const read = () => {
    const terms = {};
    const wrong = [];
    summary.replaceChildren();
    for (const each of fields) {
      each.complain('');
      try {
        const value = each.read();
        if (value !== undefined) terms[each.name] = value;
        else if (each.required) throw new Wrong('required');
      } catch (error) {
        if (!(error instanceof Wrong)) throw error;
        wrong.push({ term: each.name, rule: error.rule });
      }
    }
    if (!wrong.length) return terms;
    refuse(wrong);
    return null;
  };

  node.addEventListener('input', () => node.querySelector('.wrong') || summary.replaceChildren());
  return {
    node,
    read,
    refuse,
    hold: (on) => {
      node.inert = on;
    },
  };
}

/** A term's control, with its label, hints and place for errors. */
function field(term, termSet, value, listPrice) {
  const { name, type, required, constraints = {} } = term;
  const label = t(`term_${name}`);
  const known = [value, ...Object.values(termSet.category_defaults).map((defaults) => defaults[name])].filter(
    (each) => each !== undefined,
  );
  const describedby = `hint-${name} error-${name}`;
  const control = CONTROLS[type]({ name, value, known, constraints, currency: listPrice.currency, describedby });

  const shown = (bound) =>
    type === 'money' ? money({ amount: bound, currency: listPrice.currency }) : measured(bound, 'day');
  const explain = (rule) =>
    t(`rule_${rule}`, {
      price: money(listPrice),
      min: shown(constraints.min ?? 0),
      max: shown(constraints.max ?? 0),
      ratio: new Intl.NumberFormat(locale, { style: 'percent', maximumFractionDigits: 2 }).format(
        constraints.min_ratio_of_list_price ?? 0,
      ),
      other: t(`term_${constraints[rule]}`),
    });
  const rules = Object.keys(constraints).filter((rule) => !(rule === 'min' && constraints.min <= 1));
  const secret = term.visibility === 'private';
  const hints = [
    has(`help_${name}`) && t(`help_${name}`),
    secret && value !== undefined && t('proposed'),
    type === 'timestamp' && t('zone', { zone: Intl.DateTimeFormat().resolvedOptions().timeZone }),
    rules.map((rule) => explain(rule)).join(' '),
  ].filter(Boolean);
  const hint = el(
    'p',
    { class: 'hint', id: `hint-${name}` },
    hints.map((each) => el('span', {}, `${each} `)),
  );
  const error = el('p', { class: 'error', id: `error-${name}`, hidden: true });
  const title = [label, required ? null : el('span', { class: 'optional' }, ` ${t('optional')}`)];
  const lock = secret && el('p', { class: 'private' }, el('strong', {}, t('private')), ` ${t('private_text')}`);
  const node = control.group
    ? el(
        'fieldset',
        { 'aria-describedby': describedby, id: `term-${name}`, tabindex: '-1' },
        el('legend', {}, title),
        lock,
        hint,
        control.node,
        error,
      )
    : el('div', {}, el('label', { for: control.target.id }, title), lock, hint, control.node, error);
  node.classList.add('field', ...(secret ? ['secret'] : []));
  node.dataset.test = `field-${name}`;
  const target = control.group ? node : control.target;
  const complain = (text) => {
    error.textContent = text;
    error.hidden = !text;
    node.classList.toggle('wrong', Boolean(text));
    if (text && !control.group) target.setAttribute('aria-invalid', 'true');
    else target.removeAttribute('aria-invalid');
  };
  node.addEventListener('input', () => complain(''));
  return { name, label, required, node, target, explain, complain, read: control.read };
}

const input = (name, describedby, more) =>
  el('input', { id: `term-${name}`, 'aria-describedby': describedby, autocomplete: 'off', ...more });

const CONTROLS = {
  money({ name, value, currency, describedby }) {
    const mine = value?.currency === currency;
    const echo = el('output', { class: 'echo', id: `echo-${name}`, for: `term-${name}` });
    const hear = () => {
      try {
        const read = minor(target.value, currency);
        echo.textContent = read ? money({ amount: read, currency }) : '';
      } catch {
        echo.textContent = '';
      }
    };
    const target = input(name, describedby, { type: 'text', inputmode: 'decimal', input: hear });
    target.value = mine ? decimal(value.amount, currency).replace('.', separator()) : '';
    hear();
    return {
      target,
      node: el(
        'div',
        { class: 'money' },
        el('span', { class: 'with' }, target, el('span', { class: 'unit' }, currency)),
        echo,
      ),
      read() {
        const amount = minor(target.value, currency);
        return amount && { amount, currency };
      },
    };
  },

  timestamp({ name, value, describedby }) {
    const target = input(name, describedby, { type: 'datetime-local' });
    const before = value ? local(value) : '';
    target.value = before;
    return {
      target,
      node: target,
      read() {
        if (target.validity.badInput) throw new Wrong('type');
        if (!target.value) return undefined;
        // What was not changed keeps its seconds and its offset.
        return target.value === before ? value : new Date(target.value).toISOString().replace(/\.\d+/, '');
      },
    };
  },

  days({ name, value, constraints, describedby }) {
    const { min, max } = constraints;
    const target = input(name, describedby, { type: 'number', inputmode: 'numeric', min: min ?? 0, max, step: 1 });
    target.value = value ?? '';
    return {
      target,
      node: el('span', { class: 'with short' }, target, el('span', { class: 'unit' }, t('days'))),
      read() {
        if (target.validity.badInput || target.validity.stepMismatch) throw new Wrong('type');
        return target.value === '' ? undefined : Number(target.value);
      },
    };
  },

  release_condition: (field) =>
    select(
      field,
      ['accepted', 'delivered', 'shipped'].map((each) => [each, t(`release_${each}`)]),
    ),

  choice(field) {
    const own = el('input', {
      id: `other-${field.name}`,
      type: 'text',
      autocomplete: 'off',
      hidden: true,
      'aria-label': t('other_name'),
      maxlength: 64,
    });
    const box = select(
      field,
      [...new Set(field.known)].map((each) => [each, named(each)]),
      own,
    );
    return { ...box, node: el('div', { class: 'stack' }, box.node, own) };
  },

  choices(field) {
    return checklist(
      field,
      (list) => list,
      named,
      [t('add_choice')],
      ([id]) => id,
    );
  },

  fulfillment_options(field) {
    const list = checklist(
      field,
      (options) => options.flatMap(({ method_type, option_ids }) => option_ids.map((each) => `${method_type}/${each}`)),
      (key) => option(...key.split('/')),
      [t('add_method'), t('add_option')],
      (parts) => parts.join('/'),
    );
    return {
      ...list,
      read() {
        const methods = new Map();
        for (const key of list.read() ?? []) {
          const [method, chosen] = key.split('/');
          methods.set(method, [...(methods.get(method) ?? []), chosen]);
        }
        return methods.size
          ? Array.from(methods, ([method_type, option_ids]) => ({ method_type, option_ids }))
          : undefined;
      },
    };
  },

  buyer_requirements({ name, value = {} }) {
    const lists = ['jurisdictions', 'certifications'].map((kind) => {
      const box = el('input', {
        id: `term-${name}-${kind}`,
        type: 'text',
        autocomplete: 'off',
        'aria-describedby': `hint-${name}-${kind}`,
      });
      box.value = (value[kind] ?? []).join(', ');
      return [kind, box];
    });
    const boxes = MECHANISMS.map((each) => [
      each,
      tick(`term-${name}-${each}`, t(`mechanism_${each}`), value.authenticated_by?.includes(each)),
    ]);
    return {
      group: true,
      node: el(
        'details',
        { open: Object.keys(value).length > 0 },
        el('summary', { id: `open-${name}` }, t('requirements_open')),
        lists.map(([kind, box]) =>
          el(
            'div',
            { class: 'field' },
            el('label', { for: box.id }, t(kind)),
            el('p', { class: 'hint', id: `hint-${name}-${kind}` }, t(`${kind}_hint`)),
            box,
          ),
        ),
        el(
          'div',
          { class: 'field', role: 'group', 'aria-label': t('authenticated_by') },
          el('p', { class: 'label' }, t('authenticated_by')),
          boxes.map(([, { node }]) => node),
        ),
      ),
      read() {
        const wanted = {};
        for (const [kind, box] of lists) {
          const each = [
            ...new Set(
              box.value
                .split(',')
                .map((part) => part.trim())
                .filter(Boolean),
            ),
          ];
          if (each.length) wanted[kind] = each;
        }
        const by = boxes.filter(([, { box }]) => box.checked).map(([each]) => each);
        if (by.length) wanted.authenticated_by = by;
        return Object.keys(wanted).length ? wanted : undefined;
      },
    };
  },
};

function select({ name, value, describedby }, options, own) {
  const target = el(
    'select',
    { id: `term-${name}`, 'aria-describedby': describedby, change: () => own && (own.hidden = target.value !== '+') },
    value === undefined && el('option', { value: '' }, t('choose')),
    options.map(([key, text]) => el('option', { value: key, selected: key === value }, text)),
    own && el('option', { value: '+' }, t('other')),
  );
  return {
    target,
    node: target,
    read() {
      if (target.value !== '+') return target.value || undefined;
      return own.value.trim() ? slug(own.value) : undefined;
    },
  };
}

function tick(boxId, text, checked) {
  const box = el('input', { type: 'checkbox', id: boxId });
  box.checked = Boolean(checked);
  return { box, node: el('label', { class: 'tick' }, box, el('span', {}, text)) };
}

/** Boxes for every value that the marketplace or the agent named, and a way to add others. */
function checklist({ name, value, known }, keys, text, labels, join) {
  const boxes = new Map();
  const list = el('div', { class: 'ticks' });
  const put = (key, checked) => {
    if (!boxes.has(key)) {
      const { box, node } = tick(`term-${name}-${key}`, text(key), checked);
      boxes.set(key, box);
      list.append(node);
    } else if (checked) boxes.get(key).checked = true;
  };
  known.forEach((each, at) => keys(each).forEach((key) => put(key, at === 0 && value !== undefined)));

  const parts = labels.map((label, at) =>
    el('input', {
      id: `add-${name}-${at}`,
      type: 'text',
      autocomplete: 'off',
      placeholder: label,
      'aria-label': label,
      maxlength: 64,
      keydown: (event) => event.key === 'Enter' && (event.preventDefault(), add()),
    }),
  );
  const add = () => {
    const values = parts.map((part) => part.value.trim());
    if (values.every((each) => !each)) return;
    put(join(values.map(slug)), true);
    for (const part of parts) part.value = '';
    parts[0].focus();
  };
  const more = el(
    'button',
    {
      type: 'button',
      id: `add-${name}`,
      class: 'secondary',
      'aria-label': `${t('add')}: ${t(`term_${name}`)}`,
      click: () => {
        try {
          add();
        } catch {
          parts.find((part) => !CHOICE.test(part.value.trim()))?.focus();
        }
      },
    },
    t('add'),
  );
  return {
    group: true,
    node: el('div', { class: 'stack' }, list, el('div', { class: 'adder' }, parts, more)),
    read() {
      add();
      const on = [...boxes].filter(([, box]) => box.checked).map(([key]) => key);
      return on.length ? on : undefined;
    },
  };
}

/** What a person typed as the marketplace's kind of identifier. */
function slug(text) {
  const id = text.trim().replace(/\s+/g, '_');
  if (!CHOICE.test(id)) throw new Wrong('type');
  return id;
}

const separator = () => new Intl.NumberFormat(locale).formatToParts(1.5).find(({ type }) => type === 'decimal').value;

/** Minor units of an amount as the reader's locale writes it; undefined where there is none. Exact: no floating point. */
function minor(text, currency) {
  const own = [...new Intl.NumberFormat(locale, { useGrouping: false }).format(9876543210)].reverse();
  let plain = text
    .replace(/\p{Nd}/gu, (digit) => (own.includes(digit) ? own.indexOf(digit) : digit))
    .replace(/[\s'’_]/g, '');
  if (!plain) return undefined;
  const point = separator();
  const n = digits(currency);
  // One or two digits are never a group, whichever sign stands before them.
  plain = plain.replace(/^(\d+)[.,](\d{1,2})$/, `$1${point}$2`);
  const [whole, part = '', ...rest] = plain.split(point);
  const grouped = /^\d{1,3}([.,٬]\d{2,3})*[.,٬]\d{3}$/.test(whole);
  if (rest.length || !(grouped || /^\d+$/.test(whole)) || !/^\d*$/.test(part) || part.length > n)
    throw new Wrong('money');
  const amount = BigInt(whole.replace(/\D/g, '') + part.padEnd(n, '0'));
  if (amount < 1n || amount > BigInt(Number.MAX_SAFE_INTEGER)) throw new Wrong('money');
  return Number(amount);
}

/** A point in time as `datetime-local` writes it. */
function local(time) {
  const date = new Date(time);
  return new Date(date - date.getTimezoneOffset() * 60000).toISOString().slice(0, 16);
}

document.addEventListener('visibilitychange', () => document.hidden || check());

load();
