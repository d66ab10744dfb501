// One tool call with version 2 of the TypeScript SDK: a JSON line per event; exit 0 result, 3 tool error, 4 other error.
//   node client-v2.mjs --url URL --era legacy|modern --tool NAME --args JSON [--bearer TOKEN] [--timeout MS]
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { args, begin, headers, patience, say, sayResult } from './common.mjs';

const o = args('url', 'tool', 'args', 'bearer', 'era', 'timeout');
const options = o.era === 'modern' ? { versionNegotiation: { mode: { pin: '2026-07-28' } } } : {};
const client = new Client({ name: 'typescript-v2', version: '1.0.0' }, options);
client.onerror = e => say('onerror', { msg: String(e.message) });
const transport = new StreamableHTTPClientTransport(new URL(o.url), { requestInit: { headers: headers(o) } });
try {
  await client.connect(transport);
  say('connected', { protocol: transport.protocolVersion });
  const { tools } = await client.listTools();
  say('tools', { names: tools.map(t => t.name) });
  begin();
  const r = await client.callTool({ name: o.tool, arguments: JSON.parse(o.args) }, { onprogress: p => say('progress', p), ...patience(o) });
  const code = sayResult(r);
  if (o.era !== 'modern') await transport.terminateSession();
  await client.close();
  process.exit(code);
} catch (e) {
  say('error', { msg: String(e.message) });
  setTimeout(() => process.exit(4), 300); // what the SDK says to the server about it has to leave first
}
