"""Frames over a stream socket: cut anywhere, many at once, and a peer that is gone."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import msgspec
import pytest

from engine.channel import LENGTH, Channel, ChannelClosed, decode_from_engine, frame
from engine.config import EngineConfig
from engine.messages import AbortRequests, EngineFailed, EngineRequest, LoadProgress, Shutdown, ToEngine
from engine.sampling_params import SamplingParams

REQUEST = EngineRequest(
    request_id="r", prompt_token_ids=[1, 262_143], sampling=SamplingParams(max_tokens=3, seed=2**63, stop_token_ids=[4])
)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Channel]]:
    client, engine = socket.socketpair()
    client.settimeout(10)
    with client, engine:
        yield client, Channel(engine)


def test_a_frame_is_its_bodys_length_and_its_body() -> None:
    wire = frame(Shutdown())
    assert LENGTH.unpack(wire[:4]) == (len(wire) - 4,)
    assert msgspec.msgpack.decode(wire[4:]) == {"type": "shutdown"}


def test_a_message_cut_at_any_byte_arrives_whole(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    wire = frame(REQUEST)
    for cut in range(1, len(wire)):
        client.sendall(wire[:cut])
        assert channel.receive(0.0) == []
        client.sendall(wire[cut:])
        assert channel.receive(10.0) == [REQUEST]


def test_a_message_may_come_byte_by_byte(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    received: list[ToEngine] = []
    for byte in frame(REQUEST) + frame(Shutdown()):
        client.sendall(bytes([byte]))
        received += channel.receive(0.0)
    assert received == [REQUEST, Shutdown()]


def test_all_messages_that_have_arrived_come_at_once_in_order(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    sent: list[ToEngine] = [REQUEST, AbortRequests(["r", "s"]), Shutdown()] * 20
    tail = frame(REQUEST)
    client.sendall(b"".join(map(frame, sent)) + tail[:7])
    assert channel.receive(None) == sent
    client.sendall(tail[7:])
    assert channel.receive(None) == [REQUEST]


def test_nothing_arrived_is_an_empty_list_after_the_timeout(ends: tuple[socket.socket, Channel]) -> None:
    assert ends[1].receive(0.0) == []


def test_a_message_larger_than_one_read_arrives_whole(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    large = msgspec.structs.replace(REQUEST, prompt_token_ids=[262_143] * 600_000)
    wire = memoryview(frame(large))
    assert len(wire) > 2 << 20
    client.setblocking(False)
    received: list[ToEngine] = []
    while not received:
        if wire:
            with contextlib.suppress(BlockingIOError):
                wire = wire[client.send(wire) :]
        received = channel.receive(0.0)
    assert received == [large]


def test_a_peer_that_closed_is_reported(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    client.close()
    with pytest.raises(ChannelClosed):
        channel.receive(None)
    with pytest.raises(ChannelClosed):
        channel.receive_config()
    with pytest.raises(ChannelClosed):
        channel.send(EngineFailed("nobody listens"))


def test_messages_sent_just_before_closing_are_delivered_first(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    client.sendall(frame(REQUEST) + frame(Shutdown()))
    client.close()
    assert channel.receive(None) == [REQUEST, Shutdown()]
    with pytest.raises(ChannelClosed):
        channel.receive(None)


def test_a_peer_that_closed_within_a_message_is_reported(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    client.sendall(frame(REQUEST)[:-1])
    client.close()
    with pytest.raises(ChannelClosed):
        channel.receive(None)


def test_the_configuration_comes_first_and_what_follows_is_kept(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    config = EngineConfig(model="m", max_num_seqs=3, gpu_memory_utilization=0.5)
    client.sendall(frame(config) + frame(REQUEST))
    assert channel.receive_config() == config
    client.sendall(frame(Shutdown()))
    assert channel.receive(10.0) == [REQUEST, Shutdown()]


def test_what_the_engine_sends_reads_back_as_sent(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    sent = [LoadProgress(stage="weights", done=1, total=2), EngineFailed("no memory: 3 GiB wanted")]
    for message in sent:
        channel.send(message)
    wire = client.recv(1 << 16)
    received = []
    while wire:
        (length,) = LENGTH.unpack(wire[:4])
        received.append(decode_from_engine(wire[4 : 4 + length]))
        wire = wire[4 + length :]
    assert received == sent


def test_a_body_that_is_no_message_is_an_error(ends: tuple[socket.socket, Channel]) -> None:
    client, channel = ends
    client.sendall(LENGTH.pack(3) + b"\xc1\xc1\xc1")
    with pytest.raises(msgspec.DecodeError):
        channel.receive(0.0)
