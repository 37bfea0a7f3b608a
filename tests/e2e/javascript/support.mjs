// What the JavaScript tests share: the SDK under test, the server, and sandboxes that do not outlive a test.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'

const packageDir = join(process.env.HUTCH_E2E_NODE_MODULES, 'e2b')
const { module: entry } = JSON.parse(readFileSync(join(packageDir, 'package.json'), 'utf8'))

// The SDK's version is the runner's choice, so it cannot be a static import.
export const e2b = await import(pathToFileURL(join(packageDir, entry)))

export const server = {
  url: process.env.HUTCH_URL,
  options: {
    apiKey: process.env.HUTCH_API_KEY,
    apiUrl: process.env.HUTCH_URL,
    sandboxUrl: process.env.HUTCH_URL,
  },
}

/** Creates a sandbox that is killed when the test is done. */
export async function create(test, options = {}) {
  const sandbox = await e2b.Sandbox.create({ timeoutMs: 120_000, ...server.options, ...options })
  test.after(() => e2b.Sandbox.kill(sandbox.sandboxId, server.options))
  return sandbox
}

/** Calls `condition` until it returns something truthy, and returns that. */
export async function waitFor(what, condition, withinMs = 15_000) {
  const deadline = Date.now() + withinMs
  for (;;) {
    const result = await condition()
    if (result) return result
    if (Date.now() > deadline) throw new Error(`waited ${withinMs} ms in vain for ${what}`)
    await new Promise((resolve) => setTimeout(resolve, 50))
  }
}
