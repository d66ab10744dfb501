// node:fs, with a globSync also where Node.js has none.
import * as fs from 'node:fs';

export * from 'node:fs';
export { default } from 'node:fs';
export const globSync = fs.globSync ?? (() => { throw new Error('globSync needs Node.js 22 or later'); });
