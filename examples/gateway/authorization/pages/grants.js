// The seller's grants: those in force, each with a way to take it back, and those that have ended.

import { api, button, el, links, moment, note, problem, rich, say, show, signIn, t, why } from '/pages/pages.js';

async function load() {
  try {
    view((await api('/grants/list')).grants);
  } catch (error) {
    if (error.status === 401) show(signIn(load));
    else problem(error, load);
  }
}

function view(grants) {
  const active = grants.filter(({ status }) => status === 'active');
  const ended = grants.filter(({ status }) => status !== 'active');
  links(['list', '/approve'], ['grants', '/grants']);
  show(
    el('h1', {}, t('grants_title')),
    el('p', { class: 'lead' }, t('grants_text')),
    active.length
      ? el(
          'ul',
          { class: 'rows', id: 'active' },
          active.map((each) => el('li', {}, card(each, 'h2'))),
        )
      : el(
          'div',
          { class: 'card empty', 'data-test': 'empty' },
          el('h2', {}, t('no_grants_title')),
          el('p', {}, t('no_grants_text')),
        ),
    ended.length > 0 &&
      el(
        'section',
        { 'aria-labelledby': 'ended-title' },
        el('h2', { id: 'ended-title' }, t('grants_ended')),
        el(
          'ul',
          { class: 'rows', id: 'ended' },
          ended.map((each) => el('li', {}, card(each, 'h3'))),
        ),
      ),
  );
}

function card({ grant_id, client, agent_id, tiers, created_at, expires_at, status }, level) {
  const active = status === 'active';
  const place = el('div', {});
  const name = client.name ?? client.client_id;

  const ask = () => {
    const back = button(`keep-${grant_id}`, t('keep'), 'secondary', async () => {
      place.replaceChildren(revoke);
      revoke.focus();
    });
    const trouble = el('div', {});
    const sure = button(`confirm-${grant_id}`, t('revoke_sure'), 'danger', async () => {
      try {
        await api(`/grants/${encodeURIComponent(grant_id)}/revoke`, {});
        await load();
        say(t('revoked_said', { agent: name }), true);
      } catch (error) {
        trouble.replaceChildren(
          error.status === 401 ? signIn(load, { level: 'h2', title: t('ended_title') }) : note('bad', why(error)),
        );
      }
    });
    const question = el('p', { id: `question-${grant_id}`, tabindex: '-1' }, rich('revoke_question', { agent: name }));
    place.replaceChildren(
      el(
        'div',
        { class: 'confirm', role: 'group', 'aria-labelledby': question.id },
        question,
        trouble,
        el('div', { class: 'buttons' }, sure, back),
      ),
    );
    question.focus();
  };
  const revoke = el(
    'button',
    {
      type: 'button',
      id: `revoke-${grant_id}`,
      class: 'secondary',
      click: ask,
      'aria-label': `${t('revoke')}: ${name}`,
    },
    t('revoke'),
  );
  if (active) place.append(revoke);

  return el(
    'article',
    { class: 'card grant', 'data-test': `grant-${grant_id}`, 'data-status': status },
    el('header', {}, el(level, {}, el('bdi', {}, name)), el('span', { class: `pill ${status}` }, t(`grant_${status}`))),
    el(
      'p',
      { class: 'fine' },
      rich('run_by', { who: client.legal_entity ?? client.operator ?? '' }),
      ' ',
      el('bdi', { class: 'code' }, agent_id),
    ),
    active &&
      el(
        'dl',
        { class: 'facts' },
        Object.entries(tiers).map(([scope, tier]) =>
          el('div', {}, el('dt', {}, t(`scope_${scope}`)), el('dd', {}, t(`tier_${tier}`))),
        ),
      ),
    el(
      'p',
      { class: 'fine' },
      t(active ? 'grant_dates' : 'grant_dates_ended', { from: moment(created_at), until: moment(expires_at) }),
    ),
    place,
  );
}

load();
