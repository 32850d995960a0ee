# SPDX-License-Identifier: MIT
"""Boxes that open, hold, reset and flood all that they can: the server stays small, and others are served meanwhile."""

from __future__ import annotations

import pytest

from tests.adversarial.egress.far_services import PORT_HOLD, PORT_KEEP, PORT_POUR, PORT_SLOW, PORT_SWITCH
from tests.adversarial.egress.ground import PRELUDE, Ground
from tests.adversarial.host_state import descriptors_of, kilobytes, until, wait_for_rest

pytestmark = pytest.mark.linux

RULES = tuple(f"web.example:{port}" for port in (PORT_HOLD, PORT_KEEP, PORT_POUR, PORT_SLOW, PORT_SWITCH))
ALLOWED_GROWTH_KB = 150 << 10
KNOWN = f"HOLD, KEEP, POUR, SLOW, SWITCH = {PORT_HOLD}, {PORT_KEEP}, {PORT_POUR}, {PORT_SLOW}, {PORT_SWITCH}\n"
FLOODS = {
    # Each holds what it opened until it is told that the others were served.
    "connections": """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
ends = []
where = socket.getaddrinfo("web.example", HOLD, type=socket.SOCK_STREAM)[0][4]
for _ in range(12):
    if os.fork() == 0:
        try:
            for _ in range(450):
                end = socket.socket(); end.settimeout(20); end.connect(where); end.sendall(b"hello there\\n")
                ends.append(end)
        except OSError:
            pass
        os.write(2, b"(%d)" % len(ends))
        time.sleep(600)
time.sleep(600)
""",
    "half open": """
where = socket.getaddrinfo("web.example", HOLD, type=socket.SOCK_STREAM)[0][4]
ends = []
for number in range(800):
    end = socket.socket(); end.settimeout(20); end.connect(where)
    if number % 2: end.sendall(b"GET / HT")
    else: end.sendall(b"\\x16\\3\\1\\2\\0\\1")
    if number % 3: end.shutdown(1)
    ends.append(end)
os.write(2, b"(%d)" % len(ends))
time.sleep(600)
""",
    "resets": """
where = socket.getaddrinfo("web.example", KEEP, type=socket.SOCK_STREAM)[0][4]
os.write(2, b"(0)")
while True:
    end = socket.socket(); end.settimeout(20)
    try:
        end.connect(where)
        end.send(b"GET / HTTP/1.1\\r\\nHost: web.example:%d\\r\\n\\r\\n" % KEEP)
    except OSError: pass
    end.setsockopt(1, 13, struct.pack("ii", 1, 0)); end.close()
""",
    "small writes": """
end = socket.create_connection(("web.example", SWITCH)); end.setsockopt(6, 1, 1)
end.sendall(b"GET / HTTP/1.1\\r\\nHost: web.example:%d\\r\\n" % SWITCH)
end.sendall(b"Upgrade: any\\r\\nConnection: Upgrade\\r\\n\\r\\n")
end.recv(4096); end.setblocking(False)
os.write(2, b"(0)")
while True:
    select.select([end], [end], [])
    try: end.send(b"x")
    except BlockingIOError: pass
    try: end.recv(65536)
    except BlockingIOError: pass
""",
    "nothing is read": """
ends = []
for _ in range(120):
    end = socket.create_connection(("web.example", POUR)); end.sendall(b"x\\n"); ends.append(end)
os.write(2, b"(0)")
time.sleep(600)
""",
    "nothing is taken": """
ends = []
for _ in range(120):
    end = socket.create_connection(("web.example", HOLD)); end.setblocking(False); ends.append(end)
os.write(2, b"(0)")
while True:
    for end in ends:
        try: end.send(b"\\1" * 65536)
        except BlockingIOError: pass
    time.sleep(0.05)
""",
    "slow heads": """
ends = []
for _ in range(300):
    end = socket.create_connection(("web.example", KEEP)); end.sendall(b"GET / HTTP/1.1\\r\\n"); ends.append(end)
os.write(2, b"(0)")
while True:
    for end in ends:
        try: end.sendall(b"X: y\\r\\n")
        except OSError: pass
    time.sleep(0.5)
""",
    "slow answers": """
ends = []
for _ in range(100):
    end = socket.create_connection(("web.example", SLOW))
    end.sendall(b"GET / HTTP/1.1\\r\\nHost: web.example:%d\\r\\n\\r\\n" % SLOW); ends.append(end)
os.write(2, b"(0)")
time.sleep(600)
""",
    "names": """
end = socket.socket(2, 2)
os.write(2, b"(0)")
n = 0
while True:
    n += 1
    label = b"%032d" % n
    question = (b"ab\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0 " + label + b"\\4evil\\7example\\0\\0\\1\\0\\1")
    try: end.sendto(question, ("198.18.0.1", 53))
    except OSError: pass
""",
    "datagrams": """
end = socket.socket(2, 2)
os.write(2, b"(0)")
while True:
    try: end.sendto(b"x" * 1400, ("45.67.89.10", 443))
    except OSError: pass
""",
    "denials": """
os.write(2, b"(0)")
n = 0
while True:
    n += 1
    end = socket.socket(); end.setblocking(False)
    end.connect_ex((f"45.67.{n % 200}.{n // 200 % 250}", 1 + n % 60000))
    end.close()
""",
}  # fmt: skip
# How long a flood lasts: those that open little are in full spate at once, the others take time on a busy machine.
SECONDS = dict.fromkeys(("resets", "small writes", "names", "datagrams", "denials"), 6)
WITNESS = """
request = b"GET / HTTP/1.1\\r\\nHost: web.example:%d\\r\\nConnection: close\\r\\n\\r\\n" % KEEP
told["said"] = talk("web.example", KEEP, request, 20)
"""


# Behind the server of an ordinary user: what meets the namespace itself, which is made in another way there. All that
# comes after is the same gateway.
BEHIND_USER = ("connections", "half open", "names", "datagrams", "denials")
STANDINGS = [*(("root", flood) for flood in FLOODS), *(("user", flood) for flood in BEHIND_USER)]


@pytest.mark.parametrize(("server", "flood"), STANDINGS)
def test_a_flood_leaves_the_server_small_and_others_served(ground: Ground, server: str, flood: str) -> None:
    pid = ground.pids[server]
    ground.attack(f"http-{server}", KNOWN + WITNESS, *RULES)
    wait_for_rest(pid)
    before, (descriptors, _) = kilobytes(pid), descriptors_of(pid)
    limits = {"timeout_seconds": SECONDS.get(flood, 12), "memory_mb": 512}
    running = ground.begin(server, PRELUDE + KNOWN + FLOODS[flood], *RULES, limits=limits)
    served = 0
    while not running.done():
        outcome = ground.attack(f"http-{server}", KNOWN + WITNESS, *RULES)
        assert outcome.told["said"].startswith("HTTP/1.1 204"), outcome
        served += 1
        assert kilobytes(pid) - before < ALLOWED_GROWTH_KB
    result = running.result()
    assert served
    assert result["outcome"] == "timed_out", result["stderr"]
    assert "(" in result["stderr"], result["stderr"]
    records = ground.trace(server, result["run_id"])
    assert len(records) < 25_000
    until(lambda: descriptors_of(pid)[0] <= descriptors + 8, f"{descriptors_of(pid)} descriptors, {descriptors} before")
