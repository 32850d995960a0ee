# SPDX-License-Identifier: MIT
"""JavaScript, with arguments, an environment variable and stdin. Needs Node.js where the server runs."""

from __future__ import annotations

import os

from agentbox.sdk.client import AgentboxClient

URL = os.environ.get("AGENTBOX_URL", "http://127.0.0.1:8080")
CODE = """
const fs = require("node:fs");
console.log("arguments:", process.argv.slice(2).join(" "));
console.log("GREETING:", process.env.GREETING);
console.log("stdin:", fs.readFileSync(0, "utf8"));
fetch("http://192.0.2.1/").catch(() => console.log("network: none"));
"""

with AgentboxClient(URL) as client:
    answer = client.run(
        CODE, language="javascript", args=["one", "two"], env={"GREETING": "hello"}, stdin="four", memory_mb=256
    )
    print(answer.stdout, answer.stderr, sep="", end="")
