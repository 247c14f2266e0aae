// What waits for the seller, and what was answered lately.

import { api, button, el, left, links, moment, money, problem, rich, say, show, signIn, swap, t } from './pages.js';

const EVERY = 10000;
let before = null;
let waiting = null;

async function load(quietly) {
  let data;
  try {
    data = await api('/approve/pending');
  } catch (error) {
    if (error.status === 401) {
      before = null;
      document.getElementById('nav').replaceChildren();
      show(signIn(load));
    } else if (quietly) document.getElementById('stale')?.removeAttribute('hidden');
    else problem(error, load);
    return;
  }
  const text = JSON.stringify(data.approvals);
  document.getElementById('stale')?.setAttribute('hidden', '');
  if (text === before) return;
  const focus = document.activeElement.id;
  view(data.approvals, quietly ? swap : show);
  before = text;
  if (focus) document.getElementById(focus)?.focus();
}

function view(approvals, put) {
  const pending = approvals.filter(({ status }) => status === 'pending');
  const done = approvals.filter(({ status }) => status !== 'pending');
  links(['list', '/approve'], ['grants', t('grants_url')]);
  put(
    el('h1', {}, t('list_title')),
    el('p', { class: 'note bad', id: 'stale', hidden: true }, t('list_stale')),
    pending.length
      ? el('ul', { class: 'rows', id: 'waiting' }, pending.map(row))
      : el(
          'div',
          { class: 'card empty', 'data-test': 'empty' },
          el('h2', {}, t('empty_title')),
          el('p', {}, t('empty_text')),
        ),
    done.length > 0 &&
      el(
        'section',
        { 'aria-labelledby': 'done-title' },
        el('h2', { id: 'done-title' }, t('done_title')),
        el('ul', { class: 'rows done', id: 'answered' }, done.map(row)),
      ),
  );
  if (waiting !== null && waiting !== pending.length)
    say(t(pending.length === 1 ? 'waiting_one' : 'waiting_many', { n: pending.length }), true);
  waiting = pending.length;
}

function row({ approval_id, action, status, created_at, expires_at, display, decision }) {
  const state = status === 'approved' && decision?.reason ? 'stopped' : status;
  const price = display.deal_terms?.price ?? display.price ?? display.list_price;
  const stamp =
    status === 'pending'
      ? el('span', { class: 'left', 'data-until': expires_at }, t('time_left', { left: left(expires_at) }))
      : el('span', { class: `pill ${state}` }, t(`status_${state}`));
  return el(
    'li',
    { class: 'row', 'data-test': `approval-${approval_id}`, 'data-status': status },
    el(
      'a',
      { href: `/approve/${encodeURIComponent(approval_id)}`, id: `open-${approval_id}` },
      el('span', { class: 'what' }, t(`verb_${action}`)),
      el('span', { class: 'which' }, el('bdi', {}, display.title ?? t('untitled'))),
    ),
    el('span', { class: 'side' }, price && el('span', { class: 'price' }, money(price)), stamp),
    el(
      'p',
      { class: 'fine' },
      rich('asked_by', { who: display.legal_entity ?? display.operator, time: moment(created_at) }),
    ),
  );
}

setInterval(() => {
  for (const each of document.querySelectorAll('[data-until]'))
    each.textContent = t('time_left', { left: left(each.dataset.until) });
}, 1000);
const again = () => document.hidden || before === null || load(true);
setInterval(again, EVERY);
document.addEventListener('visibilitychange', again);

load();
