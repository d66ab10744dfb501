// What the servers and the clients on the TypeScript SDKs have in common.
import { parseArgs } from 'node:util';
import { setTimeout as sleep } from 'node:timers/promises';

// args reads the command line; every option is a string.
export function args(...names) {
  const options = Object.fromEntries(names.map(n => [n, { type: 'string' }]));
  return parseArgs({ options }).values;
}

// slow reports one step after the other, each followed by its share of the time.
export async function slow({ duration_ms, steps }, progress) {
  for (let i = 1; i <= steps; i++) {
    await progress({ progress: i, total: steps, message: `step ${i}` });
    await sleep(duration_ms / steps);
  }
  return text(`slow finished ${steps} steps`);
}

export const text = (s, isError = false) => ({ content: [{ type: 'text', text: s }], isError });

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
