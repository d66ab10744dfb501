// What the servers and the clients on the TypeScript SDKs have in common.
import { parseArgs } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';

// args reads the command line; every option is a string.
export function args(...names) {
  const options = Object.fromEntries(names.map(n => [n, { type: 'string' }]));
  return parseArgs({ options }).values;
}

export const text = (s, isError = false) => ({ content: [{ type: 'text', text: s }], isError });

// slow reports one step after the other, each followed by its share of the time.
export async function slow({ duration_ms, steps }, progress) {
  for (let i = 1; i <= steps; i++) {
    await progress({ progress: i, total: steps, message: `step ${i}` });
    await sleep(duration_ms / steps);
  }
  return text(`slow finished ${steps} steps`);
}

// wait takes a minute, or until the client cancels the call, and reports that it waits; waited says what became of it, to anybody.
const waits = new Map();
export async function wait(key, signal, progress) {
  waits.set(key, 'waiting');
  await progress({ progress: 1, total: 2, message: 'waiting' });
  try {
    await sleep(60_000, undefined, { signal });
    waits.set(key, 'ended');
  } catch {
    waits.set(key, 'cancelled');
  }
  return text(waits.get(key));
}
export const waited = key => text(waits.get(key) ?? 'none');

// A process has the same prompts in each of its servers. Those that live longer than one request are
// live; each says which resources its client wants to hear of.
export const prompts = ['greet'];
const live = new Set();
export const greet = (server, prompt) => server.registerPrompt(prompt, {}, () => (
  { messages: [{ role: 'user', content: { type: 'text', text: `hello from ${prompt}` } }] }));

export function lives(server, wants) {
  const entry = { server, wants };
  live.add(entry);
  server.server.onclose = () => live.delete(entry);
  return server;
}

export async function touch(uri) {
  for (const l of live) if (l.wants(uri)) await l.server.server.sendResourceUpdated({ uri });
  return text('touched');
}

export function grow(prompt) {
  prompts.push(prompt);
  for (const l of live) greet(l.server, prompt); // which tells its client
  return text('grown');
}

// Client side: one JSON line per event, with the seconds since the call began.
let start = Date.now();
export const begin = () => { start = Date.now(); };
export const say = (ev, x = {}) => console.log(JSON.stringify({ t: (Date.now() - start) / 1000, ev, ...x }));

export function sayResult(r) {
  say('result', { isError: !!r.isError, text: (r.content ?? []).map(c => c.text ?? '').join('\n') });
  return r.isError ? 3 : 0;
}

// patience is how long the client waits for its call; the SDK's own default if nobody says.
export const patience = o => (o.timeout ? { timeout: +o.timeout } : {});

export function headers(o) {
  return o.bearer ? { Authorization: `Bearer ${o.bearer}` } : {};
}

const said = r => ({ text: (r.content ?? []).map(c => c.text ?? '').join('\n'), isError: !!r.isError });

// until waits for a promise, but no longer than that; it says whether it came.
const until = (promise, ms = 5000) => Promise.race([promise.then(() => true), sleep(ms, false)]);

// What the client answers when it is asked, and the questions since the step began.
let asked = [];
function ask(message, answer) {
  asked.push(message);
  say('asked', { message });
  return answer;
}
export const elicited = p => ask(p.message, { action: 'accept', content: { name: 'Ada' } });
export const sampled = p => ask(p.messages[0].content.text, { role: 'assistant', model: 'm', content: { type: 'text', text: '42' } });

// What notifications say: heard calls everybody who waits for it.
const waiting = new Set();
export const heard = what => waiting.forEach(w => w.what === what && w.resolve());
function hear(what) {
  const w = { what };
  w.promise = new Promise(resolve => { w.resolve = resolve; });
  waiting.add(w);
  return w.promise.finally(() => waiting.delete(w));
}

// steps are what a plan can ask for; sdk has what differs between the versions of the SDK.
const steps = {
  call: async (s, sdk) => said(await sdk.call(s)),
  async progress(s, sdk) {
    const progress = [];
    const onprogress = p => { progress.push(p.progress); say('progress', p); };
    return { ...said(await sdk.call(s, { onprogress })), progress };
  },
  async elicit(s, sdk) {
    asked = [];
    return { ...said(await sdk.call(s)), asked };
  },
  sample: (s, sdk) => steps.elicit(s, sdk),
  async subscribe(s, sdk) {
    const update = hear(`updated ${s.uri}`);
    const unsubscribe = await sdk.subscribe(s.uri);
    if (s.tool) await sdk.call(s);
    const updated = (await until(update, s.wait_ms)) ? s.uri : undefined;
    await unsubscribe();
    return { updated };
  },
  async cancel(s, sdk) {
    const c = new AbortController();
    if (s.after_ms) setTimeout(() => c.abort(), s.after_ms);
    const onprogress = p => {
      say('progress', p);
      if (!s.after_ms) c.abort();
    };
    return said(await sdk.call(s, { signal: c.signal, onprogress }));
  },
  async change(s, sdk) {
    await sdk.names(s.what);
    const change = hear(`${s.what} changed`);
    await sdk.call(s);
    const changed = await until(change, s.wait_ms);
    return { changed, names: await sdk.names(s.what) };
  },
};

// carryOut does the steps of a plan one after the other, and says what came of each.
export async function carryOut(plan, sdk) {
  for (const s of JSON.parse(plan)) {
    begin();
    const did = await steps[s.do](s, sdk).catch(e => ({ error: String(e.message ?? e) }));
    say('did', { do: s.do, ...did });
  }
}
