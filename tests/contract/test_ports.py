"""Free ports, with real sockets. Ports are asked from the kernel, so that runs do not meet each other."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from servekit.domain.server import Ports, ServerConfig
from servekit.errors import ConfigError, ConflictError
from servekit.system import ports


@contextlib.contextmanager
def listening(port: int) -> Iterator[None]:
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", port))
        held.listen()
        yield


@pytest.fixture
def first() -> int:
    """The first port of five that are free now."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port < 65_000 and all(ports._free("127.0.0.1", port + offset) for offset in range(25)):
            return port
    raise AssertionError("no free block of ports on this host")


def test_a_named_port_that_is_free(first: int) -> None:
    assert ports.choose(ServerConfig(port=first)) == Ports.block(first)


@pytest.mark.parametrize("offset", [0, 4])
def test_a_named_port_that_is_taken_names_its_holder(first: int, offset: int) -> None:
    name = Path("/proc/self/comm").read_text().strip()
    with listening(first + offset), pytest.raises(ConflictError) as caught:
        ports.choose(ServerConfig(port=first))
    assert caught.value.message == f"Port {first + offset} of 127.0.0.1 is in use by {name} (pid {os.getpid()})."


def test_without_a_name_the_next_free_block(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "DEFAULT_PORT", first)
    assert ports.choose(ServerConfig()) == Ports.block(first)
    with listening(first + 3):
        assert ports.choose(ServerConfig()) == Ports.block(first + 10)
        with listening(first + 10):
            assert ports.choose(ServerConfig()) == Ports.block(first + 20)


def test_no_free_block(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "DEFAULT_PORT", first)
    monkeypatch.setattr(ports, "_BLOCKS_TRIED", 1)
    with listening(first), pytest.raises(ConflictError, match="No free block of 5 ports"):
        ports.choose(ServerConfig())


@pytest.mark.parametrize("bind", ["203.0.113.7", "2001:db8::7", "no such host"])
def test_an_address_that_is_not_of_this_host(bind: str, first: int) -> None:
    with pytest.raises(ConfigError, match="is not an address of this host"):
        ports.choose(ServerConfig(bind=bind, port=first))


def test_a_port_in_time_wait_is_free(first: int) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", first))
        server.listen()
        client = socket.create_connection(("127.0.0.1", first))
        accepted, _ = server.accept()
        accepted.close()  # the side that closes first keeps the port in TIME_WAIT
        client.close()
    assert ports.choose(ServerConfig(port=first)) == Ports.block(first)


def test_a_block_that_another_up_is_about_to_use_is_passed_over() -> None:
    with contextlib.ExitStack() as first, contextlib.ExitStack() as second:
        mine = ports.choose(ServerConfig(), first)
        theirs = ports.choose(ServerConfig(), second)
        assert not set(mine.all()) & set(theirs.all())
        with pytest.raises(ConflictError, match="another servekit that is starting"):
            ports.choose(ServerConfig(port=mine.inference), second)
    with contextlib.ExitStack() as third:
        assert ports.choose(ServerConfig(), third) == mine, "let go"
