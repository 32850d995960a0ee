# SPDX-License-Identifier: MIT
# ruff: noqa: E501
"""Programs of Node whose runs must not tell whether it was warm; most are one line, however long."""

from __future__ import annotations

from tests.integration.pool.case import Case, table

_MODULE_TYPE = {"files": {"package.json": '{"type": "module"}'}}

ENDINGS = table(
    nothing=";",
    a_line="console.log(1)",
    uncaught_error="console.log('before')\nthrow new Error('x')\n",
    uncaught_error_from_a_function="function f(a) { return a.b.c }\nfunction g() { f({}) }\ng()\n",
    thrown_text="throw 'only text'",
    thrown_nothing="throw undefined",
    thrown_object="throw { code: 3, toString() { return 'shown' } }",
    error_with_cause="throw new Error('outer', { cause: new TypeError('inner') })",
    aggregate_error="throw new AggregateError([new Error('a'), new RangeError('b')], 'many')",
    syntax_error="console.log(1)\nfunction (\n",
    syntax_error_in_a_file_beside=Case("require('./other')", {"files": {"other.js": "let let = 1\n"}}),
    error_in_a_file_beside=Case("require('./other')", {"files": {"other.js": "null.x\n"}}),
    error_in_a_timer="setTimeout(() => { throw new Error('late') }, 5)",
    error_in_an_immediate="setImmediate(() => { throw new Error('late') })",
    error_in_a_tick="process.nextTick(() => { throw new Error('late') })",
    error_in_a_microtask="queueMicrotask(() => { throw new Error('late') })",
    unhandled_rejection="Promise.reject(new Error('r'))",
    unhandled_rejection_of_no_error="Promise.reject(7)",
    rejection_handled_in_time="const p = Promise.reject(1); Promise.resolve().then(() => p.catch((e) => console.log('caught', e)))",
    rejection_listener="process.on('unhandledRejection', (e) => console.log('heard', e.message)); Promise.reject(new Error('r'))",
    exception_listener="process.on('uncaughtException', (e, o) => { console.log(e.message, o) }); setTimeout(() => console.log('on'), 1); throw new Error('x')",
    exception_listener_that_throws="process.on('uncaughtException', () => { throw new Error('second') }); throw new Error('first')",
    exception_monitor="process.on('uncaughtExceptionMonitor', (e) => console.log('seen', e.message)); throw new Error('x')",
    exit_codes="process.exit(3)",
    exit_code_one="process.exit(1)",
    exit_zero_with_work_left="setTimeout(() => console.log('never'), 1000); process.exit(0)",
    exit_code_set="process.exitCode = 4",
    exit_code_set_to_one="process.exitCode = 1",
    exit_code_of_256="process.exit(256)",
    exit_code_below_zero="process.exit(-1)",
    exit_code_as_text="process.exitCode = '5'",
    exit_code_set_and_then_an_error="process.exitCode = 9; throw new Error('x')",
    exit_code_zero_and_then_an_error="process.exitCode = 0; setTimeout(() => { throw new Error('x') })",
    exit_listener="process.on('exit', (c) => console.log('bye', c, process.exitCode)); console.log('hi')",
    exit_listener_that_sets_the_code="process.on('exit', () => { process.exitCode = 6 })",
    exit_listener_that_exits="process.on('exit', () => { process.exit(8) })",
    exit_listener_that_throws="process.on('exit', () => { throw new Error('at exit') })",
    exit_listener_after_an_error="process.on('exit', (c) => { console.log('bye', c); process.exitCode = 0 }); throw new Error('x')",
    exit_listener_that_writes_much="process.on('exit', () => console.log('x'.repeat(60000)))",
    exit_listener_of_a_listener="process.on('exit', () => process.on('exit', () => console.log('never')))",
    exit_in_a_listener_of_errors="process.on('uncaughtException', () => process.exit(11)); throw new Error('x')",
    exit_listener_that_hears_once="process.once('exit', () => { process.emit('mine'); console.log('still here') })",
    exit_listener_that_hears_once_and_exits="process.once('exit', () => { process.emit('mine'); console.log('here'); process.exit(4) })",
    exit_event_emitted_by_hand="process.on('exit', (c) => console.log('c', c)); process.emit('exit', 5); console.log('on')",
    before_exit="let n = 0; process.on('beforeExit', (c) => { console.log('idle', c); if (n++ < 2) setTimeout(() => {}, 1) })",
    before_exit_that_throws="process.on('beforeExit', () => { throw new Error('late') })",
    real_exit_replaced="const real = process.reallyExit; process.reallyExit = (c) => { console.log('mine', c); real.call(process, 12) }; process.exit(0)",
    real_exit_replaced_and_not_used="process.reallyExit = () => console.log('never'); console.log('end')",
    emit_replaced="const real = process.emit; process.emit = function (n, ...a) { if (n === 'exit') console.log('saw', n, a); return real.call(this, n, ...a) }",
    emit_called_while_exiting="process.on('exit', () => { console.log(process.emit('mine')); console.log(typeof process.emit) })",
    abort="process.abort()",
    killed_by_itself="process.kill(process.pid, 'SIGKILL')",
    terminated_by_itself="process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 5000)",
    hears_a_signal="process.on('SIGTERM', (s, n) => { console.log(s, n); process.exit(2) }); process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 5000)",
    stack_overflow="function f() { return f() }\ntry { f() } catch (e) { console.log(e instanceof RangeError, e.message) }",
    out_of_time=Case("for (;;) ;", {"limits": {"timeout_seconds": 1}}),
    warning="process.emitWarning('careful')",
    assertion="require('assert').strictEqual(1, 2)",
)

STREAMS = table(
    unfinished_line="process.stdout.write('no newline')",
    both_streams="console.log('out'); console.error('err'); console.log('out again')",
    much="for (let i = 0; i < 20000; i++) console.log(i, 'x'.repeat(20))",
    much_at_once="process.stdout.write('y'.repeat(700000))",
    much_and_then_exit="process.stdout.write('y'.repeat(60000)); process.exit(0)",
    much_by_a_descriptor="const fs = require('fs'); for (let i = 0; i < 50; i++) fs.writeSync(1, 'z'.repeat(10000))",
    bytes_that_are_no_text="process.stdout.write(Buffer.from([0xff, 0xfe, 0, 0x80]))",
    text_of_the_world="console.log('Grüße, 世界, 🚀')",
    stdout_finished="process.stdout.write('a', () => console.log('written'))",
    kinds_of_streams="""
const { stdin, stdout, stderr } = process
for (const s of [stdin, stdout, stderr]) {
  console.log(s.constructor.name, s.fd, s.isTTY, s.writable, s.readable, s.writableHighWaterMark)
}
""",
    modes_of_descriptors="""
const flags = (fd) => require('fs').readFileSync(`/proc/self/fdinfo/${fd}`, 'utf8').split('\\n').find((l) => /flags/.test(l))
require('fs').writeSync(1, [1, 2].map(flags).join('\\n') + '\\n')
""",
    stdin_at_once=Case("console.log(require('fs').readFileSync(0, 'utf8').length)", {"stdin": "wörd\n" * 50000}),
    stdin_by_its_path=Case("console.log(require('fs').readFileSync('/dev/stdin', 'utf8'))", {"stdin": "a line"}),
    stdin_by_events=Case(
        "let n = 0; process.stdin.on('data', (d) => { n += d.length }).on('end', () => console.log(n))",
        {"stdin": "0123456789" * 30000},
    ),
    stdin_by_iteration=Case(
        "(async () => { for await (const l of require('readline').createInterface({ input: process.stdin })) console.log('>', l) })()",
        {"stdin": "one\ntwo\nthree"},
    ),
    stdin_with_no_end_of_line=Case("process.stdin.setEncoding('utf8').on('data', console.log)", {"stdin": "x"}),
    no_stdin="console.log(JSON.stringify(require('fs').readFileSync(0, 'utf8'))); process.stdin.on('end', () => console.log('end')).resume()",
    stdin_is_not_read=Case("console.log('unread')", {"stdin": "x" * 100000}),
    stdin_for_a_child=Case(
        "console.log(require('child_process').execSync('cat; echo', { stdio: [0, 'pipe', 2] }) + '')",
        {"stdin": "passed"},
    ),
    console_of_everything="""
class A { #p = 1; constructor() { this.x = [1, { y: new Map([[1, new Set('ab')]]) }]; this.self = this } get g() { return 1 } }
console.log(new A(), A, [undefined, null, -0, 1n, Symbol('s')], new Date(0), /r/g, new Error('e').message, () => 1)
console.log('%s %d %i %f %j %o %O %c %%', 'a', 1.5, 2.7, 3.1, { a: 1 }, [1], { b: 2 }, 'css', 'rest')
console.table([{ a: 1, b: 'x' }, { a: 2 }]); console.group('g'); console.info('in'); console.groupEnd(); console.info('out')
console.count(); console.count(); console.assert(false, 'no'); console.dir({ a: { b: { c: { d: 1 } } } }, { depth: 0 })
console.log(new Uint8Array(3), new ArrayBuffer(2), Promise.resolve(1), new WeakMap(), Object.create(null), globalThis === global)
""",
    console_trace="console.trace('here')\n",
)

MODULES = table(
    names_of_the_module="""
console.log(require.main === module, module.id, module.filename, __filename, __dirname, module.parent, module.children.length)
console.log(module.paths, Object.keys(require.cache), module.loaded, require.main.path, this === exports, arguments.length)
console.log(process.mainModule === module, require.resolve.paths('x'), require('module').globalPaths)
""",
    words_of_the_process=Case(
        """
console.log(process.argv, process.argv0, process.execPath, process.execArgv, process.title, process.cwd())
console.log(process.env, process.version, process.umask(), process.getuid(), process.getgid(), process.exitCode)
console.log(process.eventNames(), process.listenerCount('exit'), Object.keys(process).sort().join())
""",
        {
            "args": ["a", "--b=c", "", "ü x", "--max-old-space-size=1"],
            "env": {"A": "1", "B": "", "C": "x=y ü\n", "NODE_ENV": "production"},
        },
    ),
    variables_that_replace=Case(
        "console.log(process.env, require('os').homedir(), require('os').tmpdir(), require('module').globalPaths)",
        {"env": {"HOME": "/work", "PATH": "/usr/bin:/bin", "TMPDIR": "/tmp/x"}},
    ),
    variables_of_children=Case(
        "console.log(require('child_process').execSync('env | sort') + '')", {"env": {"A": "b c"}}
    ),
    global_names="console.log(Object.getOwnPropertyNames(globalThis).sort().join())",
    files_beside=Case(
        "console.log(require('./lib'), require('./data.json'), require('./dir'), require.main.children.length)",
        {
            "files": {
                "lib.js": "module.exports = [module.parent.id, require.main === module.parent, __filename]",
                "data.json": '{"a": [1]}',
                "dir/index.js": "module.exports = 'index'",
            }
        },
    ),
    packages_beside=Case(
        "console.log(require('pkg'), require('pkg/sub'))",
        {
            "files": {
                "node_modules/pkg/package.json": '{"main": "m.js"}',
                "node_modules/pkg/m.js": "module.exports = 'main'",
                "node_modules/pkg/sub.js": "module.exports = 'sub'",
            }
        },
    ),
    file_with_the_name_of_ours=Case(
        "console.log(require('./main.cjs'))", {"files": {"main.cjs": "module.exports = 'theirs'"}}
    ),
    files_of_the_workspace="console.log(require('fs').readdirSync('.'), require('fs').readdirSync('/tmp'))",
    file_that_is_not_there="require('./nothing')",
    file_that_requires_itself="if (!global.once) { global.once = 1; console.log(require('./main') === module.exports, require.cache[__filename] === module) }",
    module_type=Case(
        "import fs from 'node:fs'\nconsole.log(import.meta.url, typeof require, fs.existsSync('main.js'))", _MODULE_TYPE
    ),
    module_type_with_await=Case(
        "const v = await new Promise((r) => setTimeout(r, 5, 'later'))\nconsole.log(v, process.argv[1], this)",
        _MODULE_TYPE,
    ),
    module_type_that_never_settles=Case("await new Promise(() => {})", _MODULE_TYPE),
    module_type_that_throws=Case("console.log(1)\nthrow new Error('in a module')", _MODULE_TYPE),
    module_type_that_exits=Case("process.exitCode = 5; await 1", _MODULE_TYPE),
    module_type_that_rejects=Case("await Promise.reject(new Error('awaited'))", _MODULE_TYPE),
    module_beside=Case(
        "import { a } from './a.mjs'\nimport { createRequire } from 'node:module'\nconsole.log(a, createRequire(import.meta.url)('./b.cjs'))",
        {
            "files": {
                **_MODULE_TYPE["files"],
                "a.mjs": "export const a = import.meta.url",
                "b.cjs": "module.exports = require.main",
            }
        },
    ),
    module_of_no_package="import fs from 'fs'\nconsole.log(1)",
    imported_from_commonjs=Case(
        "import('./a.mjs').then((m) => console.log(m.default, require.main === module))",
        {"files": {"a.mjs": "export default 7"}},
    ),
    imported_text="import('data:text/javascript,export default 3').then((m) => console.log(m))",
    package_that_is_broken=Case("console.log(1)", {"files": {"package.json": "{"}}),
    package_imports=Case(
        "console.log(require('#inner'))",
        {"files": {"package.json": '{"imports": {"#inner": "./inner.js"}}', "inner.js": "module.exports = 'in'"}},
    ),
)

WORK = table(
    order_of_the_loop="""
setTimeout(() => console.log('timeout'), 0)
process.nextTick(() => { console.log('tick'); Promise.resolve().then(() => console.log('micro of tick')); process.nextTick(() => console.log('tick of tick')) })
Promise.resolve().then(() => { console.log('micro'); process.nextTick(() => console.log('tick of micro')) })
queueMicrotask(() => console.log('queued'))
;(async () => { console.log('begin'); await null; console.log('awaited') })()
console.log('main')
""",
    order_of_a_module=Case(
        """
process.nextTick(() => console.log('tick'))
Promise.resolve().then(() => console.log('micro'))
await null
console.log('main')
""",
        _MODULE_TYPE,
    ),
    intervals="let n = 0; const i = setInterval(() => { console.log(n); if (++n === 3) clearInterval(i) }, 2)",
    context_that_follows="""
const { AsyncLocalStorage } = require('async_hooks')
const s = new AsyncLocalStorage()
console.log(s.getStore())
s.run('kept', () => setTimeout(() => Promise.resolve().then(() => console.log(s.getStore())), 1))
""",
    thread="""
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads')
if (isMainThread) {
  const w = new Worker(__filename, { workerData: 20, argv: ['w'] })
  // Which comes first, what it says or what it writes, is not told in any Node.
  let said
  w.on('message', (m) => { said = m }).on('exit', (c) => console.log(said, 'exit', c))
} else {
  console.log('in a thread', process.argv, process.execArgv, require.main === module)
  parentPort.postMessage(workerData + 1)
}
""",
    thread_that_throws="""
const { Worker } = require('worker_threads')
new Worker('throw new Error("there")', { eval: true }).on('error', (e) => console.log(e.message)).on('exit', (c) => console.log(c))
""",
    thread_left_behind="""
const { Worker } = require('worker_threads')
new Worker('setInterval(() => {}, 100)', { eval: true }).on('online', function () { this.unref(); console.log('online') })
""",
    child_program="""
const { execFileSync, spawnSync } = require('child_process')
console.log(execFileSync('echo', ['a']) + '', spawnSync('sh', ['-c', 'echo e >&2; exit 3']).status)
console.log(spawnSync(process.execPath, ['-p', 'process.argv.length + require("fs").readdirSync("/proc/self/fd").length * 0']).stdout + '')
""",
    child_of_its_own_kind="""
if (process.send) {
  process.on('message', (m) => { process.send({ got: m, execArgv: process.execArgv, argv: process.argv.slice(2) }); process.disconnect() })
} else {
  const c = require('child_process').fork(__filename, ['child'])
  c.on('message', (m) => console.log(m)).on('exit', (code) => console.log('exit', code))
  c.send([1])
}
""",
    descriptors_of_a_child="""
const fds = require('child_process').execFileSync('ls', ['/proc/self/fd']) + ''
console.log(fds.trim().split('\\n').join())
""",
    child_that_shares_the_streams="require('child_process').spawn('sh', ['-c', 'sleep 0.05; echo shared; echo e >&2'], { stdio: 'inherit' }).on('exit', (c) => console.log(c))",
    child_left_behind="require('child_process').spawn('sleep', ['100'], { detached: true, stdio: 'ignore' }).unref(); console.log('left')",
    files_changed=Case(
        "const fs = require('fs'); fs.mkdirSync('out'); fs.writeFileSync('out/a.txt', 'kept'); fs.promises.readFile('in.txt', 'utf8').then(console.log)",
        {"files": {"in.txt": "read"}, "return_files": ["out/a.txt"]},
    ),
    server_on_loopback="""
const http = require('http')
const s = http.createServer((q, r) => r.end('answer ' + q.url)).listen(0, '127.0.0.1', async () => {
  console.log(await (await fetch(`http://127.0.0.1:${s.address().port}/x`)).text())
  s.close(); s.closeAllConnections()
})
""",
    no_network="require('net').connect(80, '1.1.1.1').on('error', (e) => console.log(e.code))",
    digests="const c = require('crypto'); console.log(c.createHash('sha256').update('a').digest('hex'), c.randomBytes(4).length)",
    compressed="const z = require('zlib'); console.log(z.gunzipSync(z.gzipSync('packed')) + '')",
    webassembly="WebAssembly.instantiate(new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0])).then((m) => console.log(Object.keys(m)))",
    own_context="const vm = require('vm'); console.log(vm.runInNewContext('a + 1', { a: 1 }), vm.runInThisContext('typeof require'))",
    dates_and_numbers="console.log(new Date(0).toString(), (1234.5).toLocaleString(), Intl.DateTimeFormat().resolvedOptions().timeZone)",
    heap_limit="console.log(Math.round(require('v8').getHeapStatistics().heap_size_limit / 2 ** 20))",
    out_of_memory="const a = []; for (;;) a.push(Buffer.alloc(1 << 26, 1))",
)
