// Commands and terminals.

import assert from 'node:assert/strict'
import { before, test } from 'node:test'

import { create, e2b, waitFor } from './support.mjs'

const suite = {}

before(async () => {
  suite.sandbox = await create({ after: (done) => (suite.done = done) }, { timeoutMs: 300_000 })
})

test.after(() => suite.done?.())

test('output, errors and exit codes', async () => {
  const { commands } = suite.sandbox
  const result = await commands.run('echo out; echo err >&2')
  assert.deepEqual([result.stdout, result.stderr, result.exitCode], ['out\n', 'err\n', 0])
  await assert.rejects(commands.run('echo partial; exit 7'), (error) => {
    assert.ok(error instanceof e2b.CommandExitError)
    assert.deepEqual([error.exitCode, error.stdout], [7, 'partial\n'])
    return true
  })
})

test('where, who and with which environment', async () => {
  const { commands } = suite.sandbox
  const result = await commands.run('pwd; whoami; echo $A', { cwd: '/tmp', user: 'root', envs: { A: 'ä' } })
  assert.equal(result.stdout, '/tmp\nroot\nä\n')
})

test('output is streamed while it is made', async () => {
  const seen = []
  await suite.sandbox.commands.run('for i in 1 2 3; do echo $i; sleep 0.4; done', {
    onStdout: (text) => seen.push([Date.now(), text]),
  })
  assert.equal(seen.map(([, text]) => text).join(''), '1\n2\n3\n')
  assert.ok(seen.at(-1)[0] - seen[0][0] > 500, 'it came in one piece')
})

test('a command that takes too long is ended', async () => {
  const begun = Date.now()
  await assert.rejects(suite.sandbox.commands.run('sleep 600', { timeoutMs: 1_000 }), e2b.TimeoutError)
  assert.ok(Date.now() - begun < 8_000)
})

test('a command in the background is listed, connected to and killed', async () => {
  const { commands } = suite.sandbox
  const handle = await commands.run('echo up; sleep 600', { background: true })
  assert.ok((await commands.list()).some((process) => process.pid === handle.pid))
  const again = await commands.connect(handle.pid)
  assert.equal(again.pid, handle.pid)
  assert.equal(await commands.kill(handle.pid), true)
  await assert.rejects(handle.wait(), e2b.CommandExitError)
  await assert.rejects(again.wait(), e2b.CommandExitError)
  assert.equal(await commands.kill(handle.pid), false)
})

test('input reaches the command', async () => {
  const { commands } = suite.sandbox
  const handle = await commands.run('read line; echo got:$line', { background: true, stdin: true })
  await commands.sendStdin(handle.pid, 'hello\n')
  assert.equal((await handle.wait()).stdout, 'got:hello\n')
})

test('a terminal takes input, resizes and ends', async () => {
  const { pty } = suite.sandbox
  const decoder = new TextDecoder()
  let screen = ''
  const terminal = await pty.create({
    cols: 90,
    rows: 30,
    envs: { MARK: 'pty' },
    onData: (data) => (screen += decoder.decode(data, { stream: true })),
  })
  const type = (text) => pty.sendInput(terminal.pid, new TextEncoder().encode(text))
  await type('stty size; echo mark=$MARK\n')
  await waitFor('the size', () => /30 90[\s\S]*mark=pty/.test(screen))
  await pty.resize(terminal.pid, { cols: 120, rows: 50 })
  await type('stty size\n')
  await waitFor('the new size', () => screen.includes('50 120'))
  await type('exit 4\n')
  await assert.rejects(terminal.wait(), (error) => error.exitCode === 4)
})
