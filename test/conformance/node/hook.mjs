// Lets the conformance suite load on Node.js 20, whose fs module has no globSync (the suite imports it by name, and needs it only for a command that we do not run).
//   node --import hook.mjs SUITE/dist/index.js ...
import { register } from 'node:module';

register('./resolve.mjs', import.meta.url);
