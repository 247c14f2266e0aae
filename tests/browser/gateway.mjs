// The example gateway as a process of its own, in a directory of its own.

import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { once } from 'node:events';

export class Gateway {
  /** A development world on a free port; `settings` is TOML. */
  static async start(settings = '') {
    const directory = await mkdtemp(join(tmpdir(), 'rctp-browser-'));
    const file = join(directory, 'gateway.toml');
    const paths = { store: 'rctp.db', signing_key: 'rctp-key.pem', dev_dir: 'rctp-dev' };
    const lines = Object.entries(paths).map(([name, path]) => `${name} = ${JSON.stringify(join(directory, path))}`);
    await writeFile(file, ['dev = true', 'listen = "127.0.0.1:0"', ...lines, settings].join('\n'));
    const gateway = new Gateway();
    gateway.directory = directory;
    gateway.process = spawn(process.env.GATEWAY, ['--config', file, '--log', 'info'], {
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    // Not even a failure leaves it behind.
    process.on('exit', () => gateway.process.kill('SIGKILL'));
    await gateway.listening();
    gateway.world = JSON.parse(await readFile(join(directory, 'rctp-dev/world.json'), 'utf8'));
    // Browsers allow passkeys to a name, and to no address.
    gateway.url = gateway.world.url.replace('127.0.0.1', 'localhost');
    return gateway;
  }

  /** Whatever it has said. */
  said = '';

  async listening() {
    const { stdout, stderr } = this.process;
    await new Promise((resolve, reject) => {
      const hear = (text) => {
        this.said += text;
        if (this.said.includes('A marketplace to play with')) resolve();
      };
      stdout.setEncoding('utf8').on('data', hear);
      stderr.setEncoding('utf8').on('data', hear);
      this.process.on('error', reject);
      this.process.on('exit', () => reject(new Error(`the gateway ended:\n${this.said}`)));
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

  /** A link with which a seller enrols; without an argument the world's. */
  async link(seller) {
    return (await this.dev('enrolments', seller && { seller })).url;
  }

  /** A chain of the record. */
  async record(kind, id) {
    const response = await fetch(`${this.url}/dev/record/${kind}/${id}`);
    return (await response.json()).entries ?? [];
  }

  async stop() {
    if (this.process.exitCode === null) {
      const exit = once(this.process, 'exit');
      this.process.kill('SIGTERM');
      await exit;
    }
    await rm(this.directory, { recursive: true, force: true });
    return this.process.exitCode;
  }
}
