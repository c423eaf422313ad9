// What Node's programs need of a system, by Node's own test runner.
import assert from 'node:assert';
import { execFileSync } from 'node:child_process';
import { createHash, randomBytes, generateKeyPairSync, sign, verify } from 'node:crypto';
import { mkdtemp, readFile, rm, watch, writeFile } from 'node:fs/promises';
import { createServer, connect } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import test from 'node:test';
import { setTimeout as pause } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { gunzipSync, gzipSync } from 'node:zlib';

test('workers share memory', async () => {
  const shared = new SharedArrayBuffer(4);
  const code = `const {workerData} = require('worker_threads'); for (let i = 0; i < 1000; i++) Atomics.add(new Int32Array(workerData), 0, 1)`;
  await Promise.all(Array.from({ length: 4 }, () => new Promise((done, failed) => {
    new Worker(code, { eval: true, workerData: shared }).on('exit', done).on('error', failed);
  })));
  assert.equal(new Int32Array(shared)[0], 4000);
});

test('files are written, read and watched', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'check-'));
  const ended = new AbortController();
  const seen = (async () => {
    for await (const event of watch(dir, { signal: ended.signal })) if (event.filename === 'a') return true;
  })();
  await pause(50);
  await writeFile(join(dir, 'a'), 'content');
  assert.equal(await readFile(join(dir, 'a'), 'utf8'), 'content');
  assert.ok(await seen);
  await rm(dir, { recursive: true });
});

test('sockets carry a megabyte', async () => {
  const sent = randomBytes(1 << 20);
  const server = createServer((socket) => socket.end(sent)).listen(0, '::1');
  await new Promise((done) => server.once('listening', done));
  const got = createHash('sha256');
  for await (const piece of connect(server.address().port, '::1')) got.update(piece);
  assert.equal(got.digest('hex'), createHash('sha256').update(sent).digest('hex'));
  server.close();
});

test('keys sign', () => {
  const { publicKey, privateKey } = generateKeyPairSync('ed25519');
  assert.ok(verify(null, Buffer.from('x'), publicKey, sign(null, Buffer.from('x'), privateKey)));
});

test('compression is undone', () => {
  const data = randomBytes(100_000);
  assert.deepEqual(gunzipSync(gzipSync(data)), data);
});

test('processes start', () => {
  assert.equal(execFileSync(process.execPath, ['-p', '6*7']).toString().trim(), '42');
});
