// SPDX-License-Identifier: MIT
// Programs that are waited for, spoken with, forked, ended, and that fail.
const { exec, execFile, execFileSync, execSync, fork, spawn, spawnSync } = require('node:child_process');
const { promisify } = require('node:util');

if (process.argv[2] === 'child') {
  process.on('message', ({ number }) => process.send({ number: number + 1, id: Math.random() }));
  return;
}

console.log(execSync('date +%s.%N; echo problem >&2', { encoding: 'utf8' }));
console.log(spawnSync('sort', { input: 'b\na\n', encoding: 'utf8' }).stdout, execFileSync('echo', ['a b']));
console.log(spawnSync('sh', ['-c', 'echo $$; exit 3']), spawnSync('no-such-program').error.code);
for (const wrong of [() => execSync('echo oops >&2; exit 4', { stdio: 'pipe' }), () => execSync('sleep 5', { timeout: 50 })]) {
  try {
    wrong();
  } catch (error) {
    console.log(error.message, error.status, error.code, error.signal);
  }
}
execSync('echo shown $$; echo shown too >&2', { stdio: 'inherit' });
console.log(spawnSync('sh', ['-c', 'echo here; exit 4'], { stdio: ['ignore', 'inherit', 'pipe'] }));
try {
  spawnSync('ls');
} catch (error) {
  console.log(error.name, error.message);
}

async function main() {
  console.log(await promisify(exec)('echo $$; echo problem >&2'));
  await promisify(execFile)('sh', ['-c', 'exit 9']).catch((error) => console.log(error.code, error.message));
  await promisify(exec)('sleep 9', { timeout: 50 }).catch((error) => console.log(error.killed, error.signal));
  await new Promise((done) => spawn('sh', ['-c', 'echo inherited $$; echo more >&2'], { stdio: 'inherit' }).on('close', done));
  await new Promise((done) => spawn('no-such-program').on('error', (error) => done(console.log(error.code))));
  const dialog = spawn('sh', ['-c', 'read a; echo got $a $$; read b; echo then $b; exit 5']);
  dialog.stdin.write('first\n');
  dialog.stdout.on('data', (data) => {
    console.log('said', String(data).trim());
    if (String(data).startsWith('got')) dialog.stdin.write('second\n');
  });
  console.log('closed', await new Promise((done) => dialog.on('close', (...how) => done(how))), dialog.exitCode, dialog.pid > 0);
  const several = [1, 2, 3].map((number) => new Promise((done) => {
    const one = spawn('sh', ['-c', `for i in 1 2 3; do echo ${number}-$i; sleep 0.0${4 - number}; done`]);
    one.stdout.on('data', (data) => console.log(String(data).trim(), Date.now()));
    one.on('close', done);
  }));
  console.log(await Promise.all(several));
  const child = fork(__filename, ['child']);
  child.on('message', ({ number, id }) => {
    console.log('message', number, id);
    if (number < 3) child.send({ number });
    else child.disconnect();
  });
  child.send({ number: 0 });
  await new Promise((done) => child.on('exit', done));
  const large = execFileSync('sh', ['-c', 'head -c 200000 /dev/urandom | base64'], { maxBuffer: 1e7 });
  console.log(require('node:crypto').createHash('md5').update(large).digest('hex'), large.length);
  const ended = spawn('sleep', ['30']);
  setTimeout(() => ended.kill(), 10);
  ended.on('exit', (code, signal) => console.log(code, signal, ended.killed));
}

main();
