// Runs the checkout's tests where they were copied to, `sdk/`, on the checkout's own source or, with CONFORMANCE_ON=published, on
// the package that is installed as `e2b-published`. The groups are those of the checkout's own configuration, without browsers
// and other runtimes.
import { defineConfig } from 'vitest/config'

const published = process.env.CONFORMANCE_ON === 'published'
// What the package exports under its one name; the tests import it by these paths.
const source = /^(\.\.\/)+src(\/index(\.js)?|\/errors(\.js)?|\/sandbox\/filesystem)?$/

const plugins = published
  ? [{
      name: 'published',
      enforce: 'pre',
      resolveId(id, importer) {
        if (importer?.includes('/tests/') && source.test(id)) {
          return this.resolve('e2b-published', importer, { skipSelf: true })
        }
      },
    }]
  : []
// It belongs to the source: it looks into the modules of the client under test.
const setupFiles = published ? [] : ['tests/globalFetchFallback.setup.ts']

// Files that are not to run.
const without = JSON.parse(process.env.CONFORMANCE_WITHOUT ?? '[]')

const project = (name, include, testTimeout, exclude = []) => ({
  plugins,
  test: {
    name, include, exclude: [...exclude, ...without], setupFiles, testTimeout, hookTimeout: 60_000, environment: 'node', isolate: true,
    globals: false,
  },
})

export default defineConfig({
  root: new URL('./sdk', import.meta.url).pathname,
  test: {
    maxWorkers: Number(process.env.CONFORMANCE_WORKERS ?? 3),
    projects: published
      ? [
          project('unit', ['tests/{sandbox,api}/**/*.test.ts'], 30_000),
          project('template', ['tests/template/**/*.test.ts'], 180_000),
        ]
      : [
          project('unit', ['tests/**/*.test.ts'], 30_000,
            ['tests/runtimes/**', 'tests/template/**', 'tests/connectionConfig.test.ts']),
          project('template', ['tests/template/**/*.test.ts'], 180_000),
          project('connectionConfig', ['tests/connectionConfig.test.ts'], 10_000),
        ],
  },
})
