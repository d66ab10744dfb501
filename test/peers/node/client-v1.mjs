// A client with version 1 of the TypeScript SDK: a JSON line per event; exit 0 result, 3 tool error, 4 other error.
//   node client-v1.mjs --url URL [--era sse] --tool NAME --args JSON [--bearer TOKEN] [--timeout MS]
//   node client-v1.mjs --url URL [--era sse] --plan JSON [--bearer TOKEN]
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import { SSEClientTransport } from '@modelcontextprotocol/sdk/client/sse.js';
import { CreateMessageRequestSchema, ElicitRequestSchema, ResourceUpdatedNotificationSchema } from '@modelcontextprotocol/sdk/types.js';
import { args, begin, carryOut, elicited, headers, heard, patience, sampled, say, sayResult } from './common.mjs';

const o = args('url', 'tool', 'args', 'plan', 'bearer', 'era', 'timeout');
const changed = what => ({ onChanged: () => heard(`${what} changed`) });
const client = new Client({ name: 'typescript-v1', version: '1.0.0' }, o.plan && {
  capabilities: { elicitation: { form: {} }, sampling: {} },
  listChanged: { prompts: changed('prompts'), tools: changed('tools'), resources: changed('resources') },
});
client.onerror = e => say('onerror', { msg: String(e.message) });
if (o.plan) {
  client.setRequestHandler(ElicitRequestSchema, r => elicited(r.params));
  client.setRequestHandler(CreateMessageRequestSchema, r => sampled(r.params));
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, n => heard(`updated ${n.params.uri}`));
}

const sdk = {
  call: (s, options) => client.callTool({ name: s.tool, arguments: s.args ?? {} }, undefined, options),
  names: async what => (await { tools: () => client.listTools(), prompts: () => client.listPrompts(), resources: () => client.listResources() }[what]())[what].map(x => x.name),
  async subscribe(uri) {
    await client.subscribeResource({ uri });
    return () => client.unsubscribeResource({ uri });
  },
};

const old = o.era === 'sse';
const Transport = old ? SSEClientTransport : StreamableHTTPClientTransport;
const transport = new Transport(new URL(o.url), { requestInit: { headers: headers(o) } });
try {
  await client.connect(transport);
  say('connected', { protocol: old ? transport._protocolVersion : transport.protocolVersion });
  const names = [];
  for (let cursor; ;) {
    const page = await client.listTools({ cursor });
    names.push(...page.tools.map(t => t.name));
    if (!(cursor = page.nextCursor)) break;
  }
  say('tools', { names });
  begin();
  let code = 0;
  if (o.plan) {
    await carryOut(o.plan, sdk);
  } else {
    code = sayResult(await sdk.call({ tool: o.tool, args: JSON.parse(o.args) }, { onprogress: p => say('progress', p), ...patience(o) }));
  }
  if (!old) await transport.terminateSession();
  await client.close();
  process.exit(code);
} catch (e) {
  say('error', { msg: String(e.message) });
  setTimeout(() => process.exit(4), 300); // what the SDK says to the server about it has to leave first
}
