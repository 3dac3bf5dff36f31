"""The listening socket."""

from __future__ import annotations

import socket

import pytest

from server.http.listener import ListenError, listen, url


def test_a_port_in_use_is_told_with_the_flag_that_helps() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=f"port {port} on 127.0.0.1 is in use: .*--port"):
            listen("127.0.0.1", port)


def test_the_socket_listens_at_once() -> None:
    with listen("127.0.0.1", 0) as listener, socket.create_connection(listener.getsockname()):
        pass


@pytest.mark.parametrize("host", ["no.such.host.invalid", "203.0.113.1"])
def test_a_host_that_is_not_here_is_named(host: str) -> None:
    with pytest.raises(ListenError, match=host):
        listen(host, 0)


def test_the_url_is_one_that_a_client_on_this_machine_can_use() -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with listen(host, 0) as listener:
            assert url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6_addresses_work() -> None:
    try:
        listener = listen("::1", 0)
    except ListenError:
        pytest.skip("no IPv6 loopback here")
    with listener:
        assert url(listener) == f"http://[::1]:{listener.getsockname()[1]}"
