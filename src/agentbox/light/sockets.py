# SPDX-License-Identifier: MIT
"""UNIX sockets straight over the C module: the standard library's `socket` makes an enumeration of every constant."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import *  # noqa: F403
else:
    import _socket
    from _socket import *  # noqa: F403

    class socket(_socket.socket):  # noqa: N801 - the standard library's name
        """See `socket.socket`; without files."""

        __slots__ = ("__weakref__",)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.close()

        def accept(self):
            """A new connection and the address of the other end."""
            descriptor, address = self._accept()
            made = socket(self.family, self.type, self.proto, fileno=descriptor)
            if self.gettimeout() is not None:
                made.setblocking(True)
            return made, address

    def socketpair(family=_socket.AF_UNIX, type=_socket.SOCK_STREAM, proto=0):  # noqa: A002
        """Two connected sockets."""
        one, other = _socket.socketpair(family, type, proto)
        return (
            socket(family, type, proto, fileno=one.detach()),
            socket(family, type, proto, fileno=other.detach()),
        )

    def send_fds(sock, buffers, fds):
        """Send bytes and descriptors with them."""
        numbers = b"".join([fd.to_bytes(4, _ORDER) for fd in fds])
        return sock.sendmsg(buffers, [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, numbers)])

    def recv_fds(sock, size, most):
        """Receive bytes and the descriptors that came with them."""
        data, ancillary, flags, address = sock.recvmsg(size, _socket.CMSG_LEN(4 * most))
        found = []
        for level, kind, content in ancillary:
            if level == _socket.SOL_SOCKET and kind == _socket.SCM_RIGHTS:
                found += [int.from_bytes(content[at : at + 4], _ORDER) for at in range(0, len(content) // 4 * 4, 4)]
        return data, found, flags, address

    import sys

    _ORDER = sys.byteorder
