// A tool server on version 1 of the TypeScript SDK, with sessions and resumable streams.
//   node server-v1.mjs --port N
import { createServer } from 'node:http';
import { randomUUID } from 'node:crypto';
import { z } from 'zod';
import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
import { StreamableHTTPServerTransport } from '@modelcontextprotocol/sdk/server/streamableHttp.js';
import { args, slow, text } from './common.mjs';

const o = args('port');

function tools() {
  const s = new McpServer({ name: 'typescript-v1', version: '1.0.0' });
  s.registerTool('echo', { description: 'Says it back.', inputSchema: { text: z.string() } }, async a => text(a.text));
  s.registerTool('fail', { description: 'Fails.', inputSchema: { text: z.string() } }, async a => text(a.text, true));
  s.registerTool('slow', { description: 'Takes its time.', inputSchema: { duration_ms: z.number(), steps: z.number() } }, async (a, extra) =>
    slow(a, async p => {
      const progressToken = extra._meta?.progressToken;
      if (progressToken !== undefined) await extra.sendNotification({ method: 'notifications/progress', params: { progressToken, ...p } });
    }));
  return s;
}

const sessions = new Map();
createServer(async (req, res) => {
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
}).listen(+o.port, '127.0.0.1');
