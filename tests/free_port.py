"""Ports to give to other processes, which nobody else takes before these listen."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle

PORTS = range(20_000, 32_000)  # below those that Linux gives to whoever connects, or listens at port 0


@cache
def _ports() -> Iterator[int]:
    """All of them in turn, from a place of this process's own: tests that run side by side ask for others."""
    first = random.Random(os.getpid()).randrange(len(PORTS))
    return cycle([*PORTS[first:], *PORTS[:first]])


def free_port() -> int:
    """One that nobody listens at."""
    for port in _ports():
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError
