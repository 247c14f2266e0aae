// Chromium, its virtual authenticators, and what every page has to keep to.

import { mkdir, readFile } from 'node:fs/promises';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import assert from 'node:assert/strict';
import { chromium } from 'playwright-core';

const AXE = await readFile(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const RULES = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'];
const LOOKS = [
  ['light', 1280],
  ['dark', 1280],
  ['light', 390],
  ['dark', 390],
];
const WAIT = 15000;

export class Browser {
  static async launch(screenshots) {
    const browser = new Browser();
    browser.screenshots = screenshots;
    await mkdir(screenshots, { recursive: true });
    // Its profile is a fresh directory.
    browser.chromium = await chromium.launch({
      executablePath: process.env.CHROMIUM,
      headless: true,
      args: [
        '--no-sandbox',
        '--disable-gpu',
        '--disable-quic',
        '--no-first-run',
        '--disable-background-networking',
        '--disable-component-update',
        '--disable-sync',
        '--no-proxy-server',
      ],
    });
    return browser;
  }

  /** Somebody at a browser of their own: with their own cookies, and their own authenticator. */
  async person(url) {
    const context = await this.chromium.newContext({
      locale: 'en-GB',
      timezoneId: 'Europe/Berlin',
      reducedMotion: 'reduce',
      baseURL: url,
    });
    context.setDefaultTimeout(WAIT);
    const person = new Person(this, context, url);
    await person.tab();
    return person;
  }

  close() {
    return this.chromium.close();
  }
}

export class Person {
  constructor(browser, context, url) {
    this.url = url;
    this.browser = browser;
    this.context = context;
    this.complaints = [];
  }

  /** The answers that the scenario provokes, each by its status and the end of its path. */
  expected = [];

  /** A tab with a virtual authenticator, which holds `passkey` where there is one. The first is `this.page`. */
  async tab(passkey) {
    const page = await this.context.newPage();
    this.page ??= page;
    this.watch(page);
    const cdp = await this.context.newCDPSession(page);
    await cdp.send('WebAuthn.enable');
    const { authenticatorId } = await cdp.send('WebAuthn.addVirtualAuthenticator', {
      options: {
        protocol: 'ctap2',
        transport: 'internal',
        hasResidentKey: true,
        hasUserVerification: true,
        isUserVerified: true,
        automaticPresenceSimulation: true,
      },
    });
    page.authenticator = {
      send: (method, more) => cdp.send(`WebAuthn.${method}`, { authenticatorId, ...more }),
      async passkeys() {
        return (await this.send('getCredentials')).credentials;
      },
      /** Holds this passkey and no other. */
      async hold(credential) {
        await this.send('clearCredentials');
        await this.send('addCredential', { credential });
      },
    };
    page.cdp = cdp;
    if (passkey) await page.authenticator.hold(passkey);
    return page;
  }

  /** Nothing may go wrong unseen: errors, violations of the content security policy, and requests to elsewhere. */
  watch(page) {
    page.on('pageerror', (error) => this.complaints.push(`${error} at ${page.url()}`));
    page.on('console', (message) => {
      if (!['error', 'warning'].includes(message.type())) return;
      const text = message.text();
      const [, status] = /^Failed to load resource: the server responded with a status of (\d+)/.exec(text) ?? [];
      const { url } = message.location();
      if (status && this.expected.some(([code, end]) => String(code) === status && new URL(url).pathname.endsWith(end)))
        return;
      this.complaints.push(`${text} (${url}) at ${page.url()}`);
    });
    page.on('response', (response) => {
      const page = response.headers()['content-type']?.startsWith('text/html') && response.url().startsWith(this.url);
      if (page && !response.headers()['content-security-policy']?.startsWith("default-src 'none'"))
        this.complaints.push(`no policy at ${response.url()}`);
    });
    page.on('request', (request) => {
      const { protocol, hostname } = new URL(request.url());
      if (protocol !== 'data:' && !['localhost', '127.0.0.1'].includes(hostname))
        this.complaints.push(`a request to ${request.url()}`);
    });
  }

  /** How often the page has asked for paths with this end; counts from the call on. */
  counter(end, page = this.page) {
    const counter = { count: 0 };
    page.on('request', (request) => {
      if (new URL(request.url()).pathname.endsWith(end)) counter.count += 1;
    });
    return counter;
  }

  go(path) {
    return this.page.goto(path);
  }

  see(selector, page = this.page) {
    return page.waitForSelector(selector);
  }

  click(selector, page = this.page) {
    return page.click(selector);
  }

  text(selector) {
    return this.page.textContent(selector);
  }

  focused() {
    return this.page.evaluate(() => document.activeElement.id);
  }

  /** Screenshots of the page as it is, and what accessibility checkers and narrow screens say of it. */
  async look(name, page = this.page) {
    for (const [colorScheme, width] of LOOKS) {
      await page.emulateMedia({ colorScheme });
      await page.setViewportSize({ width, height: width > 600 ? 900 : 844 });
      const over = await page.evaluate(
        () => document.documentElement.scrollWidth - document.documentElement.clientWidth,
      );
      assert(over <= 0, `${name} is ${over} px too wide at ${width} px`);
      await page.screenshot({
        path: join(this.browser.screenshots, `${name}-${colorScheme}-${width}.png`),
        fullPage: true,
      });
      if ((colorScheme === 'light') === width > 600) await this.axe(`${name}, ${colorScheme}, ${width} px`, page);
    }
    await page.emulateMedia({ colorScheme: 'light' });
    await page.setViewportSize({ width: 1280, height: 900 });
  }

  async axe(name, page) {
    // By the debugger, which no policy of the page holds back.
    const there = await page.evaluate(() => 'axe' in window);
    if (!there) await page.cdp.send('Runtime.evaluate', { expression: `${AXE};0` });
    const found = await page.evaluate(async (rules) => {
      const { violations } = await window.axe.run(document, { runOnly: rules, resultTypes: ['violations'] });
      return violations.map(({ id, impact, nodes }) => ({
        id,
        impact,
        where: nodes.map(({ target }) => target.join(' ')),
      }));
    }, RULES);
    const grave = found.filter(({ impact }) => impact === 'serious' || impact === 'critical');
    assert.deepEqual(grave, [], `accessibility of ${name}`);
    for (const { id, impact, where } of found)
      console.log(`    ${impact} finding in ${name}: ${id} at ${where.join(', ')}`);
  }
}
