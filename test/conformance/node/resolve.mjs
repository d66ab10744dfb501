// Gives the suite's own code fs.mjs for fs; everything else stays as it is.
const suite = '/@modelcontextprotocol/conformance/dist/';

export async function resolve(name, context, next) {
  const ours = (name === 'fs' || name === 'node:fs') && context.parentURL?.includes(suite);
  return ours ? { url: new URL('./fs.mjs', import.meta.url).href, shortCircuit: true } : next(name, context);
}
