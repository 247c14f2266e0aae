// Consent: what an agent may do by itself, what it must ask for, and until when.

import {
  api,
  button,
  el,
  has,
  measured,
  note,
  problem,
  message,
  rich,
  say,
  show,
  signIn,
  t,
  why,
} from '/pages/pages.js';

const ORDER = ['auto', 'ask', 'forbid'];

async function load() {
  try {
    view(await api(`/oauth/consent${location.search}`));
  } catch (error) {
    if (error.status === 401) show(signIn(load));
    else if (error.status >= 400 && error.status < 500) message('refused', t('refused_title'), t('refused_text'));
    else problem(error, load);
  }
}

/** One of several, as a row of radio buttons. */
function row(name, choices, chosen) {
  return el(
    'div',
    { class: 'tiers' },
    choices.map(([value, text]) =>
      el(
        'label',
        {},
        el('input', { type: 'radio', name, value, checked: value === chosen, 'data-test': `${name}-${value}` }),
        el('span', {}, text),
      ),
    ),
  );
}

/** What the seller may choose: what the marketplace allows, never more than the agent asked for. */
const choices = ({ tier, allowed_tiers }) =>
  ORDER.filter(
    (each) => each === 'forbid' || (allowed_tiers.includes(each) && ORDER.indexOf(each) >= ORDER.indexOf(tier)),
  );

function view({ client, agent_id, scopes, expires_in_days, max_days, redirect_host }) {
  const trouble = el('div', { id: 'trouble' });
  const usual = Math.min(expires_in_days, max_days);
  const days = [...new Set([7, 30, 90, usual])].filter((each) => each <= max_days).sort((a, b) => a - b);
  const form = el(
    'form',
    { id: 'consent', submit: (event) => event.preventDefault() },
    el('h2', {}, t('verbs_title')),
    el('p', {}, t('verbs_text')),
    scopes.map((each) =>
      el(
        'fieldset',
        { class: 'field', 'data-test': `scope-${each.verb}` },
        el('legend', {}, has(`scope_${each.scope}`) ? t(`scope_${each.scope}`) : each.title),
        row(
          each.scope,
          choices(each).map((tier) => [tier, t(`tier_${tier}`)]),
          choices(each).includes(each.tier) ? each.tier : choices(each)[0],
        ),
      ),
    ),
    el('p', { class: 'note good' }, t('floor_holds')),
    el(
      'fieldset',
      { class: 'field', 'data-test': 'expiry' },
      el('legend', {}, t('expiry_title')),
      row(
        'expiry',
        days.map((each) => [String(each), measured(each, 'day')]),
        String(usual),
      ),
    ),
  );

  const decide = (decision) => async () => {
    const chosen = new FormData(form);
    const tiers = Object.fromEntries(scopes.map(({ scope }) => [scope, chosen.get(scope)]));
    trouble.replaceChildren();
    if (decision === 'allow' && Object.values(tiers).every((tier) => tier === 'forbid')) {
      trouble.replaceChildren(note('bad', t('nothing_allowed')));
      return;
    }
    say(t('working'));
    try {
      const { redirect } = await api('/oauth/consent', {
        query: location.search.slice(1),
        decision,
        tiers,
        expires_in_days: Number(chosen.get('expiry')),
      });
      const to = new URL(redirect);
      if (['javascript:', 'data:', 'blob:'].includes(to.protocol)) throw new TypeError(to.protocol);
      message('leaving', t(`${decision}_title`), t('leaving', { host: redirect_host }));
      location.assign(to);
    } catch (error) {
      const again = () => {
        trouble.replaceChildren(note('good', t('signed_in_again')));
        document.getElementById('allow').focus();
      };
      trouble.replaceChildren(
        error.status === 401
          ? signIn(again, { level: 'h2', title: t('ended_title'), text: t('ended_text') })
          : note('bad', error instanceof TypeError ? t('error_refused') : why(error)),
      );
    } finally {
      say('');
    }
  };

  show(
    el(
      'article',
      { class: 'card', 'data-test': 'consent' },
      el('h1', {}, rich('consent_title', { agent: client.name })),
      el(
        'section',
        { class: 'asker', 'aria-labelledby': 'asker-title', 'data-test': 'asker' },
        el('h2', { id: 'asker-title' }, t('asker_title')),
        el('p', { class: 'who' }, el('bdi', {}, client.legal_entity ?? client.operator)),
        el(
          'dl',
          { class: 'small' },
          [
            ['operator', client.operator],
            ['client', client.client_id],
            ['agent', agent_id],
            ['key', client.jkt],
          ]
            .filter(([, value]) => value)
            .map(([key, value]) =>
              el('div', {}, el('dt', {}, t(`asker_${key}`)), el('dd', {}, el('bdi', { class: 'code' }, value))),
            ),
        ),
        el('p', { class: 'fine' }, t(client.signs ? 'signs' : 'bearer')),
      ),
      form,
      el(
        'section',
        { class: 'decide', 'aria-label': t('decide') },
        trouble,
        el(
          'div',
          { class: 'buttons' },
          button('allow', t('allow'), 'primary', decide('allow')),
          button('deny', t('deny'), 'secondary', decide('deny')),
        ),
        el('p', { class: 'fine' }, rich('afterwards', { host: redirect_host })),
      ),
    ),
  );
}

load();
