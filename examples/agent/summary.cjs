// SPDX-License-Identifier: MIT
// The same under Node.js: cd examples/agent && agentbox run -- node summary.cjs
const fs = require('fs');

const words = fs.readFileSync('data/notes.txt', 'utf8').split(/\s+/).filter(Boolean);
fs.writeFileSync('out/summary.txt', `${words.length} words\n`);
console.log('wrote', fs.readFileSync('out/summary.txt', 'utf8').trim());

const attempts = {
  'read /etc/passwd': () => fs.readFileSync('/etc/passwd'),
  'write ./data': () => fs.writeFileSync('data/notes.txt', 'changed'),
  'run another program': () => require('child_process').execFileSync('/bin/ls', ['/']),
};
for (const [attempt, action] of Object.entries(attempts)) {
  try {
    action();
    console.log('NOT BLOCKED:', attempt);
  } catch (error) {
    console.log('blocked:', attempt);
  }
}
