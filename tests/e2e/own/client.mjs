// A program as a user writes it: everything that it knows of the server is in the environment.

import { createRequire } from 'node:module'

const { Sandbox } = createRequire(`${process.env.SDK}/`)('e2b')
const sandbox = await Sandbox.create({ timeoutMs: 60_000 })
try {
  const said = (await sandbox.commands.run('echo hello from $(whoami)')).stdout.trim()
  await sandbox.files.write('/home/user/note.txt', 'a note')
  const note = await sandbox.files.read('/home/user/note.txt')
  await sandbox.commands.run('cd /home/user && python3 -m http.server 8000 --bind 127.0.0.1', { background: true })
  const host = sandbox.getHost(8000)
  const deadline = Date.now() + 20_000
  let answer = await fetch(`https://${host}/note.txt`)
  while (!answer.ok) {
    // Not started yet: the edge says so with a status.
    if (Date.now() > deadline) throw new Error(`${host} answers ${answer.status}`)
    await new Promise((resolve) => setTimeout(resolve, 100))
    answer = await fetch(`https://${host}/note.txt`)
  }
  const page = await answer.text()
  const signed = await (await fetch(await sandbox.downloadUrl('/home/user/note.txt'))).text()
  console.log(JSON.stringify({ said, note, host, page, signed }))
} finally {
  await sandbox.kill()
}
process.exit(0)
