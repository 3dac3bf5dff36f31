"""The listening socket, bound before anything loads: a port in use shows within milliseconds."""

from __future__ import annotations

import errno
import socket

BACKLOG = 2048


class ListenError(Exception):
    """The address cannot be listened on; the message says which and what to do."""


def listen(host: str, port: int) -> socket.socket:
    """A listening socket on ``host`` (a name or an address of IPv4 or IPv6) and ``port`` (0: any free one)."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address, family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise ListenError(f"--host {host} is not an address of this machine: {error.strerror}") from None
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} on {host} is in use: stop what uses it, or choose another with --port"
            raise ListenError(message) from None
        raise ListenError(f"cannot listen on {host} port {port}: {error.strerror or error}") from None


def url(listener: socket.socket) -> str:
    """Where a client on this machine reaches ``listener``."""
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
