// Sandboxes come, are found again, and go.

import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { test } from 'node:test'

import { create, e2b, server, waitFor } from './support.mjs'

const { Sandbox } = e2b

async function all(paginator) {
  const found = []
  while (paginator.hasNext) found.push(...(await paginator.nextItems()))
  return found
}

test('a created sandbox answers and says what it is', async (t) => {
  const sandbox = await create(t, { metadata: { purpose: 'info' }, timeoutMs: 90_000 })
  assert.equal(await sandbox.isRunning(), true)
  const info = await sandbox.getInfo()
  assert.equal(info.sandboxId, sandbox.sandboxId)
  assert.equal(info.state, 'running')
  assert.equal(info.name, 'base')
  assert.deepEqual(info.metadata, { purpose: 'info' })
  assert.ok(Math.abs(info.endAt - info.startedAt - 90_000) < 2_000)
})

test('a killed sandbox is gone', async (t) => {
  const sandbox = await create(t)
  assert.equal(await sandbox.kill(), true)
  assert.equal(await sandbox.isRunning(), false)
  assert.equal(await Sandbox.kill(sandbox.sandboxId, server.options), false)
  await assert.rejects(Sandbox.connect(sandbox.sandboxId, server.options), e2b.NotFoundError)
})

test('connect finds the same sandbox and keeps the longer lease', async (t) => {
  const sandbox = await create(t, { timeoutMs: 200_000 })
  await sandbox.files.write('note.txt', 'kept')
  const again = await Sandbox.connect(sandbox.sandboxId, { ...server.options, timeoutMs: 10_000 })
  assert.equal(await again.files.read('note.txt'), 'kept')
  const left = (await sandbox.getInfo()).endAt - Date.now()
  assert.ok(left > 180_000, `${left} ms left`)
})

test('setTimeout sets the lease, and its end ends the sandbox on time', async (t) => {
  const sandbox = await create(t, { timeoutMs: 100_000 })
  await sandbox.setTimeout(3_000)
  const end = (await sandbox.getInfo()).endAt.getTime()
  await waitFor('the end', async () => !(await sandbox.isRunning()))
  const late = Date.now() - end
  assert.ok(late > -200 && late < 1_500, `${late} ms after the deadline`)
})

test('list filters by metadata and pages', async (t) => {
  const mark = `ä&b= ${randomUUID()}`
  const ids = []
  for (let n = 0; n < 3; n++) ids.unshift((await create(t, { metadata: { mark } })).sandboxId)
  const query = { metadata: { mark } }
  const listed = await all(Sandbox.list({ query, ...server.options }))
  assert.deepEqual(listed.map((info) => info.sandboxId), ids)
  const paginator = Sandbox.list({ query, limit: 2, ...server.options })
  assert.equal((await paginator.nextItems()).length, 2)
  assert.equal(paginator.hasNext, true)
  assert.equal((await paginator.nextItems()).length, 1)
  assert.equal(paginator.hasNext, false)
})

test('metrics come soon', async (t) => {
  const sandbox = await create(t)
  const [sample] = await waitFor('metrics', async () => {
    const metrics = await sandbox.getMetrics()
    return metrics.length > 0 && metrics
  }, 30_000)
  assert.equal(sample.cpuCount, 2)
  assert.equal(sample.memTotal, 512 * 2 ** 20)
  assert.ok(sample.memUsed > 0 && sample.diskUsed > 0)
})

test('a wrong key and an unknown template are typed errors', async () => {
  const apiKey = `e2b_${'0'.repeat(40)}`
  await assert.rejects(Sandbox.create({ ...server.options, apiKey }), e2b.AuthenticationError)
  await assert.rejects(Sandbox.create('no-such-template', server.options), /404.*no-such-template/)
})

test('environment and secrets of a sandbox', async (t) => {
  const sandbox = await create(t, { envs: { GREETING: 'hello there' }, secure: true })
  const result = await sandbox.commands.run('echo $GREETING from $E2B_SANDBOX_ID')
  assert.equal(result.stdout, `hello there from ${sandbox.sandboxId}\n`)
  const headers = { 'E2b-Sandbox-Id': sandbox.sandboxId, 'E2b-Sandbox-Port': '49983' }
  assert.equal((await fetch(`${server.url}/envs`, { headers })).status, 401)
})
