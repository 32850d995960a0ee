# SPDX-License-Identifier: MIT
"""A web server and its client, both here."""

import http.server
import json
import threading
import time
import urllib.error
import urllib.request

ADDRESS = ("127.0.0.1", 18734)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path != "/time":
            self.send_error(404)
            return
        data = json.dumps({"path": self.path, "time": time.time()}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments):
        pass


server = http.server.HTTPServer(ADDRESS, Handler)
thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
thread.start()
try:
    for path in ("/time", "/time", "/absent"):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{ADDRESS[1]}{path}", timeout=10) as answer:
                print(answer.status, json.load(answer))
        except urllib.error.HTTPError as error:
            print(error, error.headers["Date"])
finally:
    server.shutdown()
    thread.join()
    server.server_close()
