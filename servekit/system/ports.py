"""Which ports are free on this host."""

from __future__ import annotations

import contextlib
import socket

from servekit.domain.server import DEFAULT_PORT, PORTS_PER_SERVER, Ports, ServerConfig
from servekit.errors import ConfigError, ConflictError
from servekit.system.process import port_owner

_BLOCKS_TRIED = 100


def choose(server: ServerConfig, held: contextlib.ExitStack | None = None) -> Ports:
    """The server's block of five ports.

    A port the user named must be free (ConflictError says who holds it); otherwise the first free block
    from 8080 on is taken. Between this choice and the moment when Java listens, ``held`` keeps the block
    from another ``up`` of this host; without it nothing is reserved.
    """
    if server.port is not None:
        ports = Ports.block(server.port)
        taken = [port for port in ports.all() if not _free(server.bind, port)]
        if taken or not _reserve(ports, held):
            owner = port_owner(taken[0]) if taken else "another servekit that is starting"
            raise ConflictError(
                f"Port {(taken or ports.all())[0]} of {server.bind} is in use by {owner}.",
                hint=f"TorchServe takes {PORTS_PER_SERVER} ports from the first on; free them, or choose "
                "another first port with --port or [server] port.",
            )
        return ports
    for block in range(_BLOCKS_TRIED):
        ports = Ports.block(DEFAULT_PORT + 10 * block)
        if all(_free(server.bind, port) for port in ports.all()) and _reserve(ports, held):
            return ports
    raise ConflictError(f"No free block of {PORTS_PER_SERVER} ports from {DEFAULT_PORT} on.", hint="Use --port.")


def _reserve(ports: Ports, held: contextlib.ExitStack | None) -> bool:
    """Claim a block by the name of its first port in the kernel's abstract socket namespace.

    That namespace is as wide as the ports are (one network namespace), and a process that dies lets go.
    """
    if held is None:
        return True
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0servekit-ports-{ports.inference}")
    except OSError:
        claim.close()
        return False
    held.callback(claim.close)
    return True


def _free(bind: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        # As Java binds: a port whose last connection is still in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((bind, port))
        except socket.gaierror:
            raise ConfigError(f"{bind!r} is not an address of this host.", hint="See [server] bind.") from None
        except OSError as error:
            if error.errno == 99:  # EADDRNOTAVAIL
                raise ConfigError(f"{bind!r} is not an address of this host.", hint="See [server] bind.") from None
            return False
    return True
