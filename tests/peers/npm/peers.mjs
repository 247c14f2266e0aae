// The clients, as far as they differ.

import * as client from '@modelcontextprotocol/client';
import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { ClientCredentialsProvider } from '@modelcontextprotocol/sdk/client/auth-extensions.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport, StreamableHTTPError } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { McpError } from '@modelcontextprotocol/sdk/types.js';

const IMPLEMENTATION = { name: 'tower-rctp-peers', version: '1.0.0' };

/** `@modelcontextprotocol/client`, which speaks both eras. */
const newest = (mode, version) => ({
  name: `@modelcontextprotocol/client, ${version}`,
  version,
  Refused: client.ProtocolError,
  HttpError: client.SdkHttpError,
  Unauthorized: client.UnauthorizedError,
  refused: ({ status, data }) => ({ status, body: JSON.parse(data.text) }),
  credentials: (options) => new client.ClientCredentialsProvider(options),
  transport: (url, options) => new client.StreamableHTTPClientTransport(url, options),
  client: () => new client.Client(IMPLEMENTATION, { versionNegotiation: { mode } }),
  negotiated: (connected) => connected.getNegotiatedProtocolVersion(),
  // It holds the answer's `iss` against the issuer that it found.
  finish: (transport, callback) => transport.finishAuth(callback),
});

/** `@modelcontextprotocol/sdk`, of the era of `initialize`. */
const former = {
  name: '@modelcontextprotocol/sdk, 2025-11-25',
  version: '2025-11-25',
  Refused: McpError,
  HttpError: StreamableHTTPError,
  Unauthorized: UnauthorizedError,
  // The text follows the message that it is one.
  refused: ({ code, message }) => ({ status: code, body: JSON.parse(message.slice(message.indexOf('{'))) }),
  credentials: (options) => new ClientCredentialsProvider(options),
  transport: (url, options) => new StreamableHTTPClientTransport(url, options),
  client: () => new Client(IMPLEMENTATION),
  negotiated: (connected) => connected.transport.protocolVersion,
  finish: (transport, callback) => transport.finishAuth(callback.get('code')),
};

export const peers = [newest('auto', '2026-07-28'), newest('legacy', '2025-11-25'), former];
