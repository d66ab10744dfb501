// One tool call with version 1 of the TypeScript SDK: a JSON line per event; exit 0 result, 3 tool error, 4 other error.
//   node client-v1.mjs --url URL --tool NAME --args JSON [--bearer TOKEN] [--timeout MS]
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { args, begin, headers, patience, say, sayResult } from './common.mjs';

const o = args('url', 'tool', 'args', 'bearer', 'era', 'timeout');
const client = new Client({ name: 'typescript-v1', version: '1.0.0' });
client.onerror = e => say('onerror', { msg: String(e.message) });
const old = o.era === 'sse';
const Transport = old ? SSEClientTransport : StreamableHTTPClientTransport;
const transport = new Transport(new URL(o.url), { requestInit: { headers: headers(o) } });
try {
  await client.connect(transport);
  say('connected', { protocol: old ? transport._protocolVersion : transport.protocolVersion });
  const { tools } = await client.listTools();
  say('tools', { names: tools.map(t => t.name) });
  begin();
  const r = await client.callTool({ name: o.tool, arguments: JSON.parse(o.args) }, undefined, { onprogress: p => say('progress', p), ...patience(o) });
  const code = sayResult(r);
  if (!old) await transport.terminateSession();
  await client.close();
  process.exit(code);
} catch (e) {
  say('error', { msg: String(e.message) });
  setTimeout(() => process.exit(4), 300); // what the SDK says to the server about it has to leave first
}
