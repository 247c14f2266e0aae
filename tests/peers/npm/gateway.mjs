// The example gateway as a process of its own, in a directory of its own.

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export class Gateway {
  /** A development world on a free port. */
  static async start() {
    const directory = mkdtempSync(join(tmpdir(), 'rctp-npm-'));
    const file = join(directory, 'gateway.toml');
    const paths = { store: 'rctp.db', signing_key: 'rctp-key.pem', dev_dir: 'rctp-dev' };
    const lines = Object.entries(paths).map(([name, path]) => `${name} = ${JSON.stringify(join(directory, path))}`);
    writeFileSync(file, ['dev = true', 'listen = "127.0.0.1:0"', ...lines].join('\n'));
    const gateway = new Gateway();
    gateway.process = spawn(process.env.GATEWAY, ['--config', file, '--log', 'warn'], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    // Not even a failure leaves it behind.
    process.on('exit', () => {
      gateway.process.kill('SIGKILL');
      rmSync(directory, { recursive: true, force: true });
    });
    await gateway.listening();
    gateway.world = JSON.parse(readFileSync(join(directory, 'rctp-dev/world.json'), 'utf8'));
    gateway.mcp = new URL(gateway.world.mcp);
    gateway.url = gateway.mcp.origin;
    return gateway;
  }

  async listening() {
    await new Promise((resolve, reject) => {
      let said = '';
      this.process.stdout.setEncoding('utf8').on('data', (text) => {
        said += text;
        if (said.includes('A marketplace to play with')) resolve();
      });
      this.process.on('error', reject);
      this.process.on('exit', () => reject(new Error('the gateway did not start')));
    });
  }

  /** What the marketplace itself does, as by `POST /dev/…`. */
  async dev(path, body = {}) {
    const response = await fetch(`${this.url}/dev/${path}`, {
      method: 'POST',
      headers: { authorization: `Bearer ${this.world.secret}` },
      body: JSON.stringify(body),
    });
    const answer = await response.json();
    if (response.status !== 201) throw new Error(`/dev/${path}: ${response.status} ${JSON.stringify(answer)}`);
    return answer;
  }

  /** A link with which the seller enrols a passkey. */
  async enrolment() {
    return (await this.dev('enrolments')).url;
  }

  /** A listing on sale. */
  async listing() {
    return (await this.dev('listings', { floor: { amount: 45_000, currency: 'EUR' } })).listing_id;
  }
}
