// Enrolment: the ticket of the address becomes a passkey.

import { api, button, el, message, newPasskey, note, passkeys, say, show, t, why } from './pages.js';

let ticket;

/** Takes the ticket out of the address, so that neither the history nor a glance over the shoulder keeps it. */
function take() {
  const found = new URLSearchParams(location.hash.slice(1)).get('ticket');
  if (location.hash) history.replaceState(null, '', location.pathname);
  if (found) ticket = found;
  if (ticket) view();
  else
    message(
      'no-ticket',
      t('no_ticket_title'),
      t('no_ticket_text'),
      el('p', {}, el('a', { href: '/signin', id: 'to-signin' }, t('to_signin'))),
    );
}

function view() {
  const trouble = el('div', { id: 'trouble' });

  const enroll = async () => {
    trouble.replaceChildren();
    say(t('passkey_waiting'));
    let made = false;
    try {
      const { publicKey, state } = await api('/enroll/options', { ticket });
      const credential = await newPasskey(publicKey);
      made = true;
      say(t('working'));
      await api('/enroll/complete', { ticket, state, credential });
    } catch (error) {
      const refused = error.status === 400 || error.status === 401;
      if (refused && !made) message('ticket-refused', t('ticket_title'), t('ticket_text'));
      else trouble.replaceChildren(note('bad', refused ? t('enroll_refused') : why(error)));
      return;
    } finally {
      say('');
    }
    ticket = null;
    message(
      'enrolled',
      t('enrolled_title'),
      t('enrolled_text'),
      el('p', {}, el('a', { href: '/approve', id: 'to-list', class: 'primary' }, t('to_list'))),
    );
  };

  show(
    el(
      'article',
      { class: 'card plain', 'data-test': 'enroll' },
      el('h1', {}, t('enroll_title')),
      el('p', { class: 'lead' }, t('enroll_text')),
      el(
        'ul',
        { class: 'points' },
        ['enroll_device', 'enroll_secret', 'enroll_ask'].map((key) => el('li', {}, t(key))),
      ),
      trouble,
      passkeys ? button('enroll', t('enroll_button'), 'primary', enroll) : note('bad', t('passkey_unsupported')),
    ),
  );
}

addEventListener('hashchange', take);
take();
