// A tool server on version 2 of the TypeScript SDK: 2026-07-28, and before it with sessions.
//   node server-v2.mjs --port N --era legacy|modern|both
import { createServer } from 'node:http';
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { McpServer, createMcpHandler, isLegacyRequest } from '@modelcontextprotocol/server';
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } from '@modelcontextprotocol/node';
import { args, slow, text } from './common.mjs';

const o = args('port', 'era');

function tools() {
  const s = new McpServer({ name: 'typescript-v2', version: '1.0.0' });
  s.registerTool('echo', { description: 'Says it back.', inputSchema: z.object({ text: z.string() }) }, async a => text(a.text));
  s.registerTool('fail', { description: 'Fails.', inputSchema: z.object({ text: z.string() }) }, async a => text(a.text, true));
  s.registerTool('slow', { description: 'Takes its time.', inputSchema: z.object({ duration_ms: z.number(), steps: z.number() }) }, async (a, ctx) =>
    slow(a, async p => {
      const progressToken = ctx.mcpReq._meta?.progressToken;
      if (progressToken !== undefined) await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, ...p } });
    }));
  return s;
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
  await tools().connect(transport);
  await transport.handleRequest(req, res, body);
}

const modern = toNodeHandler(createMcpHandler(tools, { legacy: 'reject' }));

createServer(async (req, res) => {
  let body = '';
  for await (const d of req) body += d;
  try { body = body ? JSON.parse(body) : undefined; } catch { return res.writeHead(400).end(); }
  const old = o.era === 'legacy' || (o.era === 'both' && await isLegacyRequest(await toWebRequest(req, body), body));
  await (old ? legacy : modern)(req, res, body);
}).listen(+o.port, '127.0.0.1');
