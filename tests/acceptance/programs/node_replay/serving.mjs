// SPDX-License-Identifier: MIT
// A server and its clients in one process, at a port that nobody chose.
import { once } from 'node:events';
import http from 'node:http';

const server = http.createServer((request, response) => {
  console.log('asked for', request.url, new Date().toISOString());
  response.setHeader('X-Id', Math.random());
  response.end(JSON.stringify({ url: request.url, at: Date.now() }));
});
server.listen(0, '127.0.0.1');
await once(server, 'listening');
const address = `http://127.0.0.1:${server.address().port}`;
console.log(address);
for (let number = 0; number < 3; number++) {
  const begin = performance.now();
  const response = await fetch(`${address}/${number}`);
  console.log(response.status, response.headers.get('x-id'), await response.json(), performance.now() - begin);
}
const [answer] = await once(http.get(`${address}/last`), 'response');
for await (const piece of answer) console.log(String(piece));
server.close();
server.closeAllConnections?.();
