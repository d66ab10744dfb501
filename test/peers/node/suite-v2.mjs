// A tool server on version 2 of the TypeScript SDK with what the official conformance suite asks for, written once for
// both eras: 2026-07-28, and 2025-11-25 with sessions that can be resumed.
//   node suite-v2.mjs --port N
import { createServer } from 'node:http';
import { randomBytes, randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import { z } from 'zod';
import {
  McpServer, MissingRequiredClientCapabilityError, ResourceTemplate, acceptedContent, completable, createMcpHandler, createRequestStateCodec,
  fromJsonSchema, inputRequired, inputResponse, isLegacyRequest, validateHostHeader,
} from '@modelcontextprotocol/server';
import { NodeStreamableHTTPServerTransport, toNodeHandler, toWebRequest } from '@modelcontextprotocol/node';
import { args, text } from './common.mjs';

const o = args('port');
const states = createRequestStateCodec({ key: randomBytes(32) });
const png = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg==';
const wav = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA=';
const image = { type: 'image', data: png, mimeType: 'image/png' };
const embedded = (uri, mimeType = 'text/plain') => ({ type: 'resource', resource: { uri, mimeType, text: 'embedded' } });

const object = (properties, required) => ({ type: 'object', properties, ...(required && { required }) });
const form = (message, properties, required) => inputRequired.elicit({ message, requestedSchema: object(properties, required) });
const ask = (inputRequests, requestState) => inputRequired({ inputRequests, ...(requestState && { requestState }) });
const name = message => form(message, { name: { type: 'string' } }, ['name']);
const confirm = () => form('Go on?', { ok: { type: 'boolean' } }, ['ok']);
const sample = (words, maxTokens = 50) => inputRequired.createMessage({ messages: [{ role: 'user', content: { type: 'text', text: words } }], maxTokens });
const said = v => [v.result.content].flat().map(c => c.text).join('');

const enums = {
  untitledSingle: { type: 'string', enum: ['option1', 'option2', 'option3'] },
  titledSingle: { type: 'string', oneOf: [1, 2, 3].map(n => ({ const: `value${n}`, title: `Value ${n}` })) },
  legacyEnum: { type: 'string', enum: ['opt1', 'opt2', 'opt3'], enumNames: ['One', 'Two', 'Three'] },
  untitledMulti: { type: 'array', minItems: 1, maxItems: 3, items: { type: 'string', enum: ['option1', 'option2', 'option3'] } },
  titledMulti: { type: 'array', minItems: 1, maxItems: 3, items: { anyOf: [1, 2, 3].map(n => ({ const: `value${n}`, title: `Value ${n}` })) } },
};
const defaults = {
  name: { type: 'string', default: 'John Doe' },
  age: { type: 'integer', default: 30 },
  score: { type: 'number', default: 95.5 },
  status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
  verified: { type: 'boolean', default: true },
};
const schema2020 = {
  $schema: 'https://json-schema.org/draft/2020-12/schema',
  type: 'object',
  $defs: { address: { $anchor: 'addressDef', type: 'object', properties: { street: { type: 'string' }, city: { type: 'string' } } } },
  properties: {
    name: { type: 'string' }, address: { $ref: '#/$defs/address' },
    contactMethod: { type: 'string', enum: ['phone', 'email'] }, phone: { type: 'string' }, email: { type: 'string' },
  },
  allOf: [{ anyOf: [{ required: ['phone'] }, { required: ['email'] }] }],
  if: { properties: { contactMethod: { const: 'phone' } }, required: ['contactMethod'] },
  then: { required: ['phone'] },
  else: { required: ['email'] },
  additionalProperties: false,
};

// server makes an instance with all that the suite asks for. toolsChanged and promptsChanged tell listeners of the
// stateless era; sessions are told by the instance itself.
function server(changed) {
  const s = new McpServer({ name: 'typescript-suite', version: '1.0.0' }, {
    capabilities: { logging: {}, resources: { subscribe: true, listChanged: true }, prompts: { listChanged: true } }, // tools has what registering the first one gives it
    requestState: { verify: states.verify },
  });
  // The SDK makes a result of what a tool throws, and this one has to fail with an error of the protocol.
  const set = s.server.setRequestHandler.bind(s.server);
  s.server.setRequestHandler = (method, handler) => set(method, method !== 'tools/call' ? handler : async (r, ctx) => {
    if (r.params.name === 'test_missing_capability' && !capabilities(ctx).sampling) {
      throw new MissingRequiredClientCapabilityError({ requiredCapabilities: { sampling: {} } });
    }
    return handler(r, ctx);
  });
  const tool = (name, run, inputSchema) => s.registerTool(name, { description: `For the suite: ${name}.`, ...(inputSchema && { inputSchema }) },
    inputSchema ? run : ctx => run({}, ctx));
  const capabilities = ctx => ctx.mcpReq.envelope?.['io.modelcontextprotocol/clientCapabilities'] ?? s.server.getClientCapabilities() ?? {};

  tool('test_simple_text', async () => text('This is plain text.'));
  tool('test_image_content', async () => ({ content: [image] }));
  tool('test_audio_content', async () => ({ content: [{ type: 'audio', data: wav, mimeType: 'audio/wav' }] }));
  tool('test_embedded_resource', async () => ({ content: [embedded('test://embedded-resource')] }));
  tool('test_multiple_content_types', async () => ({ content: [{ type: 'text', text: 'Text, and more:' }, image, embedded('test://mixed', 'application/json')] }));
  tool('test_error_handling', async () => { throw new Error('This tool always fails.'); });
  tool('json_schema_2020_12_tool', async a => text(JSON.stringify(a)), fromJsonSchema(schema2020));
  tool('test_x_mcp_header', async a => text(`region=${a.region}`), fromJsonSchema(object({ region: { type: 'string', 'x-mcp-header': 'Region' }, level: { type: 'integer' } })));
  tool('test_tool_with_logging', async (_, ctx) => {
    for (const words of ['begun', 'at work', 'done']) {
      await ctx.mcpReq.log('info', words);
      await sleep(50);
    }
    return text('logged');
  });
  tool('test_logging_tool', async (_, ctx) => {
    await ctx.mcpReq.log('info', 'only for who wants it');
    return text('logged, perhaps');
  });
  tool('test_tool_with_progress', async (_, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    for (const progress of progressToken === undefined ? [] : [0, 50, 100]) {
      await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress, total: 100 } });
      await sleep(50);
    }
    return text(String(progressToken));
  });
  tool('test_reconnection', async (_, ctx) => {
    ctx.http?.closeSSE?.();
    await sleep(100);
    return text('came after the stream was closed');
  });
  tool('test_missing_capability', async () => text('has sampling'));
  tool('test_streaming_elicitation', async (_, ctx) => {
    const progressToken = ctx.mcpReq._meta?.progressToken;
    if (progressToken !== undefined) await ctx.mcpReq.notify({ method: 'notifications/progress', params: { progressToken, progress: 1 } });
    return capabilities(ctx).elicitation && !ctx.mcpReq.inputResponses ? ask({ user_name: name('Who is there?') }) : text('streamed');
  });
  tool('test_trigger_tool_change', async () => {
    s.sendToolListChanged();
    changed.tools();
    return text('told');
  });
  tool('test_trigger_prompt_change', async () => {
    s.sendPromptListChanged();
    changed.prompts();
    return text('told');
  });

  tool('test_sampling', async (a, ctx) => {
    const v = inputResponse(ctx.mcpReq.inputResponses, 'mind');
    return v.kind === 'sampling' ? text(`LLM response: ${said(v)}`) : ask({ mind: sample(a.prompt, 100) });
  }, z.object({ prompt: z.string() }));
  const elicits = (tool_, requests, inputSchema) => tool(tool_, async (a, ctx) => {
    const v = inputResponse(ctx.mcpReq.inputResponses, 'answer');
    return v.kind === 'elicit' ? text(`Elicitation: action=${v.action}, content=${JSON.stringify(v.content ?? {})}`) : ask({ answer: requests(a) });
  }, inputSchema);
  elicits('test_elicitation', a => form(a.message, { username: { type: 'string' }, email: { type: 'string' } }, ['username', 'email']), z.object({ message: z.string() }));
  elicits('test_elicitation_sep1034_defaults', () => form('All of these have defaults.', defaults));
  elicits('test_elicitation_sep1330_enums', () => form('Choose.', enums));

  tool('test_input_required_result_elicitation', async (_, ctx) => {
    const who = acceptedContent(ctx.mcpReq.inputResponses, 'user_name')?.name;
    return typeof who === 'string' ? text(`Hello, ${who}!`) : ask({ user_name: name('What is your name?') });
  });
  tool('test_input_required_result_sampling', async (_, ctx) => {
    const v = inputResponse(ctx.mcpReq.inputResponses, 'capital_question');
    return v.kind === 'sampling' ? text(said(v)) : ask({ capital_question: sample('What is the capital of France?', 100) });
  });
  tool('test_input_required_result_list_roots', async (_, ctx) => {
    const v = inputResponse(ctx.mcpReq.inputResponses, 'client_roots');
    return v.kind === 'roots' ? text(`${v.roots.length} roots`) : ask({ client_roots: inputRequired.listRoots() });
  });
  const stateful = async (_, ctx) => ctx.mcpReq.requestState()?.step === 1 && acceptedContent(ctx.mcpReq.inputResponses, 'confirm')
    ? text('state-ok') : ask({ confirm: confirm() }, await states.mint({ step: 1 }));
  tool('test_input_required_result_request_state', stateful);
  tool('test_input_required_result_tampered_state', stateful);
  tool('test_input_required_result_multiple_inputs', async (_, ctx) => {
    const answers = ['user_name', 'greeting', 'client_roots'].map(key => inputResponse(ctx.mcpReq.inputResponses, key));
    if (answers.every(v => v.kind !== 'missing')) return text(answers.map(v => v.kind).join(', '));
    return ask({ user_name: name('What is your name?'), greeting: sample('Greet somebody.'), client_roots: inputRequired.listRoots() }, await states.mint({ step: 1 }));
  });
  tool('test_input_required_result_multi_round', async (_, ctx) => {
    const was = ctx.mcpReq.requestState(), { inputResponses } = ctx.mcpReq;
    if (!was) return ask({ step1: name('What is your name?') }, await states.mint({ step: 1 }));
    if (was.step === 1) {
      const who = acceptedContent(inputResponses, 'step1')?.name;
      return ask({ step2: form('And your favourite colour?', { color: { type: 'string' } }, ['color']) }, await states.mint({ step: 2, who }));
    }
    return text(`${was.who} likes ${acceptedContent(inputResponses, 'step2')?.color}`);
  });
  tool('test_input_required_result_capabilities', async (_, ctx) => {
    if (ctx.mcpReq.inputResponses) return text('answered');
    const can = capabilities(ctx), requests = {};
    if (can.elicitation) requests.user_name = name('What is your name?');
    if (can.sampling) requests.greeting = sample('Greet somebody.');
    if (can.roots) requests.client_roots = inputRequired.listRoots();
    return Object.keys(requests).length ? ask(requests) : text('nobody can be asked');
  });

  s.registerResource('static-text', 'test://static-text', { mimeType: 'text/plain' }, async u => ({ contents: [{ uri: u.href, mimeType: 'text/plain', text: 'Some text.' }] }));
  s.registerResource('static-binary', 'test://static-binary', { mimeType: 'image/png' }, async u => ({ contents: [{ uri: u.href, mimeType: 'image/png', blob: png }] }));
  s.registerResource('watched', 'test://watched-resource', { mimeType: 'text/plain' }, async u => ({ contents: [{ uri: u.href, mimeType: 'text/plain', text: 'Watched.' }] }));
  s.registerResource('template', new ResourceTemplate('test://template/{id}/data', { list: undefined }), { mimeType: 'application/json' },
    async (u, { id }) => ({ contents: [{ uri: u.href, mimeType: 'application/json', text: JSON.stringify({ id, templateTest: true, data: `Data for ID: ${id}` }) }] }));
  for (const method of ['resources/subscribe', 'resources/unsubscribe']) s.server.setRequestHandler(method, async () => ({}));

  const user = content => ({ role: 'user', content });
  const words = t => user({ type: 'text', text: t });
  const prompt = (name, run, argsSchema) => s.registerPrompt(name, { description: `For the suite: ${name}.`, ...(argsSchema && { argsSchema }) },
    argsSchema ? run : ctx => run({}, ctx));
  prompt('test_simple_prompt', async () => ({ messages: [words('A simple prompt.')] }));
  prompt('test_prompt_with_arguments', async a => ({ messages: [words(`arg1='${a.arg1}', arg2='${a.arg2}'`)] }),
    z.object({ arg1: completable(z.string(), v => ['paris', 'park'].filter(x => x.startsWith(v))), arg2: z.string() }));
  prompt('test_prompt_with_embedded_resource', async a => ({ messages: [user(embedded(a.resourceUri)), words('Look at it.')] }), z.object({ resourceUri: z.string() }));
  prompt('test_prompt_with_image', async () => ({ messages: [user(image), words('Look at it.')] }));
  prompt('test_input_required_result_prompt', async (_, ctx) => {
    const content = acceptedContent(ctx.mcpReq.inputResponses, 'user_context');
    return content ? { messages: [words(`Context: ${content.context}`)] }
      : ask({ user_context: form('What is it about?', { context: { type: 'string' } }, ['context']) });
  });
  return s;
}

// events keeps what a session sent, so that its streams can be resumed.
function events() {
  const all = [];
  return {
    async storeEvent(stream, message) { return String(all.push({ stream, message })); },
    async getStreamIdForEventId(id) { return all[id - 1]?.stream; },
    async replayEventsAfter(id, { send }) {
      const { stream } = all[id - 1];
      for (let i = +id; i < all.length; i++) if (all[i].stream === stream && all[i].message.jsonrpc) await send(String(i + 1), all[i].message);
      return stream;
    },
  };
}

const sessions = new Map();
async function legacy(req, res, body) {
  const id = req.headers['mcp-session-id'];
  const known = sessions.get(id);
  if (known) return known.handleRequest(req, res, body);
  if (id) return res.writeHead(404).end();
  const transport = new NodeStreamableHTTPServerTransport({
    sessionIdGenerator: randomUUID, eventStore: events(), retryInterval: 500,
    onsessioninitialized: id => sessions.set(id, transport),
    onsessionclosed: id => sessions.delete(id),
  });
  await server({ tools() {}, prompts() {} }).connect(transport);
  await transport.handleRequest(req, res, body);
}

const handler = createMcpHandler(() => server({ tools: () => handler.notify.toolsChanged(), prompts: () => handler.notify.promptsChanged() }), { legacy: 'reject' });
const modern = toNodeHandler(handler);

createServer(async (req, res) => {
  let body = '';
  for await (const d of req) body += d;
  const hosts = ['127.0.0.1', 'localhost'];
  const origin = req.headers.origin && URL.canParse(req.headers.origin) ? new URL(req.headers.origin).hostname : req.headers.origin;
  if (!validateHostHeader(req.headers.host, hosts).ok || origin && !hosts.includes(origin)) return res.writeHead(403).end();
  try { body = body ? JSON.parse(body) : undefined; } catch { return res.writeHead(400).end(); }
  await (await isLegacyRequest(await toWebRequest(req, body), body) ? legacy : modern)(req, res, body);
}).listen(+o.port, '127.0.0.1');
