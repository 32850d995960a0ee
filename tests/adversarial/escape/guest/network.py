# SPDX-License-Identifier: MIT
"""Attacks over sockets: services of the host, ways out, address families with a kernel surface of their own."""

import contextlib
import socket
import struct

from attempt import KNOWN, attack, refused

PORT = KNOWN["tcp_port"]


def connects(family, address, kind=socket.SOCK_STREAM):
    with socket.socket(family, kind) as sock:
        sock.settimeout(2)
        return not refused(sock.connect, address)


@attack
def connect_to_a_port_of_the_host():
    hosts = (
        "127.0.0.1",
        "127.0.0.2",
        "0.0.0.0",
        "localhost",
        "10.0.2.2",
        "172.17.0.1",
        "192.168.0.1",
        "169.254.169.254",
    )
    found = [host for host in hosts if connects(socket.AF_INET, (host, PORT))]
    for host in ("::1", "::", "::ffff:127.0.0.1"):
        for port in (PORT, KNOWN["tcp6_port"]):
            with contextlib.suppress(OSError):
                if port and connects(socket.AF_INET6, (host, port)):
                    found.append(host)
    return ", ".join(found) or None


@attack
def send_a_datagram_to_the_host_or_beyond():
    found = []
    for host in ("127.0.0.1", "0.0.0.0", "192.0.2.1", "8.8.8.8", "255.255.255.255", "224.0.0.1"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 0)
            with contextlib.suppress(OSError):
                sock.sendto(b"out", (host, KNOWN["udp_port"]))
                # On its own loopback it may send what nobody receives; the host's canary tells whether it left.
                if not host.startswith(("127.", "0.")):
                    found.append(host)
    return ", ".join(found) or None


@attack
def connect_to_an_abstract_socket_of_the_host():
    found = []
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET):
        if connects(socket.AF_UNIX, "\0" + KNOWN["abstract"], kind):
            found.append(str(kind))
    return ", ".join(found) or None


@attack
def resolve_a_name():
    found = []
    for name in ("example.com", "metadata.google.internal", "a.root-servers.net"):
        with contextlib.suppress(OSError):
            found.append("%s is %s" % (name, socket.getaddrinfo(name, 80)[0][4]))
    return ", ".join(found) or None


@attack
def open_a_raw_or_exotic_socket():
    kinds = {
        "raw ip": (2, 3, 1), "raw ipv6": (10, 3, 58), "raw tcp": (2, 3, 6), "packet": (17, 3, 3), "packet dgram": (17, 2, 3),
        "vsock": (40, 1, 0), "alg": (38, 5, 0), "sctp": (2, 1, 132), "sctp packets": (2, 5, 132), "mptcp": (2, 1, 262),
        "dccp": (2, 6, 33), "udplite": (2, 2, 136), "bluetooth": (31, 3, 1), "can": (29, 3, 1), "xdp": (44, 3, 0),
        "tipc": (30, 2, 0), "rds": (21, 5, 0), "netfilter": (16, 3, 12), "generic netlink": (16, 3, 16), "smc": (43, 1, 0),
        "qipcrtr": (42, 2, 0), "kcm": (41, 5, 0), "nfc": (39, 3, 0), "ax25": (3, 5, 0), "x25": (9, 5, 0), "llc": (26, 1, 0),
        "phonet": (35, 2, 0), "ieee802154": (36, 2, 0), "key": (15, 3, 2), "ipx": (4, 2, 0), "appletalk": (5, 2, 0),
    }  # fmt: skip
    return (
        ", ".join(name for name, one in kinds.items() if not refused(lambda o=one: socket.socket(*o).close())) or None
    )


@attack
def find_an_interface_besides_loopback():
    names = [name for _, name in socket.if_nameindex()]
    return None if names == ["lo"] else ", ".join(names)


@attack
def change_interfaces_or_routes_over_netlink():
    """Adding a default route, an address, a dummy interface; each must be answered with a refusal."""
    header = "=IHHII"
    done = []
    requests = {
        "default route": (24, struct.pack("=8BI", 2, 0, 0, 0, 254, 4, 0, 1, 0) + struct.pack("=HHI", 8, 4, 1)),
        "address": (20, struct.pack("=4BI", 2, 8, 0, 0, 1) + struct.pack("=HH4s", 8, 2, bytes([10, 9, 9, 9]))),
        "interface": (16, struct.pack("=BxHiII", 0, 0, 0, 0, 0) + struct.pack("=HH4s", 8, 3, b"up0\0")),
        "lo down": (16, struct.pack("=BxHiII", 0, 0, 1, 0, 1)),
    }
    for name, (kind, body) in requests.items():
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            sock.settimeout(3)
            sock.send(struct.pack(header, 16 + len(body), kind, 0x5 | 0x600, 1, 0) + body)
            answer = sock.recv(4096)
            (error,) = struct.unpack_from("=i", answer, 16)
            if error == 0:
                done.append(name)
    return ", ".join(done) or None


@attack
def read_who_listens_on_the_host():
    with open("/proc/net/tcp") as lines:
        ports = [int(line.split()[1].rpartition(":")[2], 16) for line in lines.readlines()[1:]]
    with open("/proc/net/unix") as lines:
        names = [line for line in lines if KNOWN["abstract"] in line or "docker" in line]
    return "sees %s %s" % (ports, names) if PORT in ports or names else None


@attack
def reach_the_server_that_runs_it():
    """Also through what the host's own view of loopback would offer."""
    found = [
        port
        for port in (KNOWN["server_port"], 8080, 22, 2375, 80, 443)
        if connects(socket.AF_INET, ("127.0.0.1", port))
    ]
    return ", ".join(map(str, found)) or None
