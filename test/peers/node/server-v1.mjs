// A tool server on version 1 of the TypeScript SDK, with sessions.
//   node server-v1.mjs [--port N]
// Without a port it serves its standard input and output.
import { createServer } from 'node:http';
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { SubscribeRequestSchema, UnsubscribeRequestSchema } from '@modelcontextprotocol/sdk/types.js';
import { args, greet, grow, lives, prompts, slow, text, touch, wait, waited } from './common.mjs';

const o = args('port', 'era');
const inputSchema = { text: z.string() };
const requestedSchema = { type: 'object', properties: { name: { type: 'string' } }, required: ['name'] };

const progress = extra => async p => {
  const progressToken = extra._meta?.progressToken;
  if (progressToken !== undefined) await extra.sendNotification({ method: 'notifications/progress', params: { progressToken, ...p } });
};

function tools() {
  const s = new McpServer({ name: 'typescript-v1', version: '1.0.0' }, { capabilities: { resources: { subscribe: true } } });
  s.registerTool('echo', { description: 'Says it back.', inputSchema }, async a => text(a.text));
  s.registerTool('fail', { description: 'Fails.', inputSchema }, async a => text(a.text, true));
  s.registerTool('slow', { description: 'Takes its time.', inputSchema: { duration_ms: z.number(), steps: z.number() } }, async (a, extra) =>
    slow(a, progress(extra)));
  // Asked as in the SDK's own examples, that is, on the standalone stream.
  s.registerTool('elicit', { description: 'Asks for a name.', inputSchema }, async a => {
    const r = await s.server.elicitInput({ message: a.text, requestedSchema });
    return text(`${r.action} ${r.content?.name}`);
  });
  s.registerTool('sample', { description: 'Asks a model.', inputSchema }, async a => {
    const messages = [{ role: 'user', content: { type: 'text', text: a.text } }];
    const r = await s.server.createMessage({ messages, maxTokens: 10 });
    return text(`sampled ${r.content.text}`);
  });
  s.registerTool('wait', { description: 'Waits to be cancelled.', inputSchema }, async (a, extra) => wait(a.text, extra.signal, progress(extra)));
  s.registerTool('waited', { description: 'Says what became of a wait.', inputSchema }, async a => waited(a.text));
  s.registerTool('touch', { description: 'Says that a resource changed.', inputSchema }, async a => touch(a.text));
  s.registerTool('grow', { description: 'Adds a prompt.', inputSchema }, async a => grow(a.text));
  s.registerResource('first', 'note:///1', {}, async uri => ({ contents: [{ uri: uri.href, text: `this is ${uri.href}` }] }));
  for (const p of prompts) greet(s, p);
  const uris = new Set();
  s.server.setRequestHandler(SubscribeRequestSchema, r => { uris.add(r.params.uri); return {}; });
  s.server.setRequestHandler(UnsubscribeRequestSchema, r => { uris.delete(r.params.uri); return {}; });
  return lives(s, uri => uris.has(uri));
}

const sessions = new Map();
async function handle(req, res) {
  const known = sessions.get(req.headers['mcp-session-id']);
  if (known) return known.handleRequest(req, res);
  if (req.headers['mcp-session-id']) return res.writeHead(404).end();
  const transport = new StreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: id => sessions.set(id, transport),
    onsessionclosed: id => sessions.delete(id),
  });
  await tools().connect(transport);
  await transport.handleRequest(req, res);
}

if (o.port) {
  createServer(handle).listen(+o.port, '127.0.0.1');
} else {
  await tools().connect(new StdioServerTransport());
}
