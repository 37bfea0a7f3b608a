// Files.

import assert from 'node:assert/strict'
import { createHash, randomBytes, randomUUID } from 'node:crypto'
import { before, test } from 'node:test'

import { create, e2b, server, waitFor } from './support.mjs'

const suite = {}

before(async () => {
  suite.sandbox = await create({ after: (done) => (suite.done = done) }, { timeoutMs: 300_000 })
})

test.after(() => suite.done?.())

async function folder() {
  const path = `/home/user/${randomUUID()}`
  assert.equal(await suite.sandbox.files.makeDir(path), true)
  return path
}

test('what is written is read back in every format', async () => {
  const { files } = suite.sandbox
  const path = `${await folder()}/ü n.txt`
  await files.write(path, 'Grüße\n')
  assert.equal(await files.read(path), 'Grüße\n')
  assert.equal(new TextDecoder().decode(await files.read(path, { format: 'bytes' })), 'Grüße\n')
  assert.equal(await (await files.read(path, { format: 'blob' })).text(), 'Grüße\n')
  assert.equal(await new Response(await files.read(path, { format: 'stream' })).text(), 'Grüße\n')
})

test('binary data is unharmed', async () => {
  const { files } = suite.sandbox
  const path = `${await folder()}/random`
  const data = randomBytes(2_000_003)
  await files.write(path, data.buffer.slice(data.byteOffset, data.byteOffset + data.length))
  const sum = (bytes) => createHash('sha256').update(bytes).digest('hex')
  assert.equal(sum(await files.read(path, { format: 'bytes' })), sum(data))
})

test('streams and several files are written', async () => {
  const { files } = suite.sandbox
  const path = await folder()
  await files.write(`${path}/stream`, new Blob(['0123456789'.repeat(50_000)]).stream())
  assert.equal((await files.getInfo(`${path}/stream`)).size, 500_000)
  const written = await files.write([1, 2, 3].map((n) => ({ path: `${path}/${n}.txt`, data: `${n}` })))
  assert.equal(written.length, 3)
  assert.equal(await files.read(`${path}/3.txt`), '3')
})

test('folders are listed, made, renamed and removed', async () => {
  const { files } = suite.sandbox
  const path = await folder()
  await files.write(`${path}/a/b/c.txt`, 'x')
  assert.deepEqual((await files.list(path)).map((entry) => [entry.name, entry.type]), [['a', 'dir']])
  const deep = (await files.list(path, { depth: 3 })).map((entry) => entry.path.slice(path.length)).sort()
  assert.deepEqual(deep, ['/a', '/a/b', '/a/b/c.txt'])
  assert.equal(await files.makeDir(`${path}/a`), false)
  await files.rename(`${path}/a/b/c.txt`, `${path}/d.txt`)
  assert.equal(await files.exists(`${path}/a/b/c.txt`), false)
  assert.equal(await files.exists(`${path}/d.txt`), true)
  await files.remove(`${path}/a`)
  assert.equal(await files.exists(`${path}/a`), false)
})

test('what is known of an entry', async () => {
  const { files, commands } = suite.sandbox
  const path = `${await folder()}/file`
  await files.write(path, '12345')
  await commands.run(`chmod 640 ${path}`)
  const info = await files.getInfo(path)
  assert.deepEqual([info.size, info.mode, info.owner, info.type], [5, 0o640, 'user', 'file'])
})

test('missing files and wrong kinds are typed errors', async () => {
  const { files } = suite.sandbox
  const path = await folder()
  await assert.rejects(files.read(`${path}/missing`), e2b.NotFoundError)
  await assert.rejects(files.list(`${path}/missing`), e2b.NotFoundError)
  await assert.rejects(files.write(path, 'a folder is in the way'), e2b.InvalidArgumentError)
  assert.equal(await files.exists(`${path}/missing`), false)
})

test('compressed both ways', async () => {
  const { files } = suite.sandbox
  const path = `${await folder()}/zipped`
  const text = 'compress me '.repeat(20_000)
  await files.write(path, text, { gzip: true })
  assert.equal(await files.read(path, { gzip: true }), text)
})

test('signed addresses work without a token', async () => {
  const { sandbox } = suite
  const path = `${await folder()}/signed`
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
  const body = new FormData()
  body.append('file', new Blob(['uploaded']), 'signed')
  const uploadUrl = await sandbox.uploadUrl(path, { useSignatureExpiration: 60_000 })
  const upload = await fetch(uploadUrl, { method: 'POST', body })
  assert.equal(upload.status, 200, await upload.text())
  const download = await fetch(await sandbox.downloadUrl(path, { useSignatureExpiration: 60_000 }))
  assert.equal(await download.text(), 'uploaded')
  assert.equal((await fetch(`${server.url}/files?path=${path}`, { headers })).status, 401)
})

test('changes of a folder are watched', async () => {
  const { files } = suite.sandbox
  const path = await folder()
  const seen = new Set()
  const watch = await files.watchDir(path, (event) => seen.add(event.name), { recursive: true })
  await files.write(`${path}/new.txt`, 'x')
  await files.makeDir(`${path}/deep/er`)
  await waitFor('the events', () => seen.has('new.txt') && seen.has('deep'))
  await watch.stop()
})
