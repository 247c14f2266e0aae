// A request that cannot be answered: nobody can be sent back to whoever made it.

import { el, message, t } from '/pages/pages.js';

message('unanswerable', t('error_title'), t('error_text'), el('p', { class: 'fine code' }, t('error')));
