# SPDX-License-Identifier: MIT
import asyncio
import http.server
import socket
import threading
import urllib.request


async def main():
    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        writer.close()

    for host in ("127.0.0.1", "::1"):
        server = await asyncio.start_server(answer, host, 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
        writer.write(b"hello\n")
        assert await reader.read() == b"HELLO\n"
        writer.close()
        server.close()
    process = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    assert (await process.communicate())[0] == b"child\n"
    server = await asyncio.start_unix_server(answer, "/tmp/service.sock")
    reader, writer = await asyncio.open_unix_connection("/tmp/service.sock")
    writer.write(b"named\n")
    assert await reader.read() == b"NAMED\n"
    server.close()


asyncio.run(main())
server = http.server.ThreadingHTTPServer(("localhost", 0), http.server.SimpleHTTPRequestHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
with urllib.request.urlopen("http://localhost:%d/main.py" % server.server_port) as response:
    assert b"ThreadingHTTPServer" in response.read()
with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as two:
    one.bind("\0abstract-of-its-own")
    one.listen(1)
    two.connect("\0abstract-of-its-own")
print("works")
