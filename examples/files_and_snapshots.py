# SPDX-License-Identifier: MIT
"""Files in, files out, and a working directory that is kept between runs."""

from __future__ import annotations

import os

from agentbox.sdk.client import AgentboxClient

URL = os.environ.get("AGENTBOX_URL", "http://127.0.0.1:8080")

with AgentboxClient(URL) as client:
    answer = client.run(
        "total = sum(int(line) for line in open('numbers.txt'))\nopen('total.txt', 'w').write(f'{total}\\n')",
        files={"numbers.txt": "1\n2\n39\n"},
        return_files=["*.txt"],
        snapshot=True,
    )
    print("files that came back:", sorted(answer.files))
    print("total:", answer.file_data("total.txt").decode(), end="")

    # The next run starts with what the first one left behind.
    assert answer.snapshot_id is not None
    later = client.run("print(open('total.txt').read(), end='')", snapshot_id=answer.snapshot_id)
    print("from the snapshot:", later.stdout, end="")

    print("snapshots kept:", answer.snapshot_id in [kept["snapshot_id"] for kept in client.snapshots()])
    client.delete_snapshot(answer.snapshot_id)
    print("after deletion:", answer.snapshot_id in [kept["snapshot_id"] for kept in client.snapshots()])
