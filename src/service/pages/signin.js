// Signing in, and on to where the seller came from.

import { show, signIn } from './pages.js';

/** A path on this origin, or the list. */
function destination() {
  const to = new URLSearchParams(location.search).get('return_to') ?? '';
  // Browsers read a backslash as a slash and drop control characters: with either, a path could name another host.
  const local =
    /^\/(?!\/)[^\\\u0000-\u001f\u007f]*$/.test(to) && new URL(to, location.origin).origin === location.origin;
  return local ? to : '/approve';
}

show(signIn(() => location.replace(destination()), { back: destination() }));
