// A tool server on version 2 of the TypeScript SDK: 2026-07-28, and before it with sessions.
//   node server-v2.mjs [--port N] --era legacy|modern|both
// Without a port it serves its standard input and output.
import { createServer } from 'node:http';
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { McpServer, createMcpHandler, inputRequired, inputResponse, isLegacyRequest } from '@modelcontextprotocol/server';
import { serveStdio } from '@modelcontextprotocol/server/stdio';
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } from '@modelcontextprotocol/node';
import { args, greet, grow, lives, prompts, slow, text, touch, wait, waited } from './common.mjs';

const o = args('port', 'era');
const inputSchema = z.object({ text: z.string() });
const name = z.object({ name: z.string() });

const progress = ctx => async p => {
  const progressToken = ctx.mcpReq._meta?.progressToken;
  if (progressToken !== undefined) await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, ...p } });
};

function tools() {
  const s = new McpServer({ name: 'typescript-v2', version: '1.0.0' }, { capabilities: { resources: { subscribe: true } } });
  s.registerTool('echo', { description: 'Says it back.', inputSchema }, async a => text(a.text));
  s.registerTool('fail', { description: 'Fails.', inputSchema }, async a => text(a.text, true));
  s.registerTool('slow', { description: 'Takes its time.', inputSchema: z.object({ duration_ms: z.number(), steps: z.number() }) }, async (a, ctx) =>
    slow(a, progress(ctx)));
  // In sessions, the SDK makes requests of what a tool asks for.
  s.registerTool('elicit', { description: 'Asks for a name.', inputSchema }, async (a, ctx) => {
    const r = inputResponse(ctx.mcpReq.inputResponses, 'who');
    if (r.kind === 'elicit') return text(`${r.action} ${r.content?.name}`);
    return inputRequired({ inputRequests: { who: inputRequired.elicit({ message: a.text, requestedSchema: name }) } });
  });
  s.registerTool('sample', { description: 'Asks a model.', inputSchema }, async (a, ctx) => {
    const r = inputResponse(ctx.mcpReq.inputResponses, 'said');
    if (r.kind === 'sampling') return text(`sampled ${r.result.content.text}`);
    const messages = [{ role: 'user', content: { type: 'text', text: a.text } }];
    return inputRequired({ inputRequests: { said: inputRequired.createMessage({ messages, maxTokens: 10 }) } });
  });
  s.registerTool('wait', { description: 'Waits to be cancelled.', inputSchema }, async (a, ctx) => wait(a.text, ctx.mcpReq.signal, progress(ctx)));
  s.registerTool('waited', { description: 'Says what became of a wait.', inputSchema }, async a => waited(a.text));
  s.registerTool('touch', { description: 'Says that a resource changed.', inputSchema }, async a => {
    modern.notify.resourceUpdated(a.text);
    return touch(a.text);
  });
  s.registerTool('grow', { description: 'Adds a prompt.', inputSchema }, async a => {
    const r = grow(a.text);
    modern.notify.promptsChanged();
    return r;
  });
  s.registerResource('first', 'note:///1', {}, async uri => ({ contents: [{ uri: uri.href, text: `this is ${uri.href}` }] }));
  for (const p of prompts) greet(s, p);
  return s;
}

// lasting is a server that lives until its client is gone, and knows what its session subscribed to.
function lasting({ era } = { era: 'legacy' }) {
  const server = tools();
  const uris = new Set();
  if (era === 'legacy') {
    server.server.setRequestHandler('resources/subscribe', r => { uris.add(r.params.uri); return {}; });
    server.server.setRequestHandler('resources/unsubscribe', r => { uris.delete(r.params.uri); return {}; });
  }
  return lives(server, uri => era === 'modern' || uris.has(uri)); // there, the SDK knows who listens to what
}

const sessions = new Map();
async function legacy(req, res, body) {
  const id = req.headers['mcp-session-id'];
  const known = sessions.get(id);
  if (known) return known.handleRequest(req, res, body);
  if (id) return res.writeHead(404).end();
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID,
    onsessioninitialized: id => sessions.set(id, transport),
    onsessionclosed: id => sessions.delete(id),
  });
  await lasting().connect(transport);
  await transport.handleRequest(req, res, body);
}

const modern = createMcpHandler(tools, { legacy: 'reject' });
const handle = toNodeHandler(modern);

if (o.port) {
  createServer(async (req, res) => {
    let body = '';
    for await (const d of req) body += d;
    try { body = body ? JSON.parse(body) : undefined; } catch { return res.writeHead(400).end(); }
    const old = o.era === 'legacy' || (o.era === 'both' && await isLegacyRequest(await toWebRequest(req, body), body));
    await (old ? legacy : handle)(req, res, body);
  }).listen(+o.port, '127.0.0.1');
} else {
  serveStdio(lasting, { legacy: o.era === 'modern' ? 'reject' : 'serve' });
}
