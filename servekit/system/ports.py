"""Which ports are free on this host."""

from __future__ import annotations

import socket

from servekit.domain.server import DEFAULT_PORT, PORTS_PER_SERVER, Ports, ServerConfig
from servekit.errors import ConfigError, ConflictError
from servekit.system.process import port_owner

_BLOCKS_TRIED = 100


def choose(server: ServerConfig) -> Ports:
    """The server's block of five ports.

    A port the user named must be free (ConflictError says who holds it); otherwise the first free block
    from 8080 on is taken.
    """
    if server.port is not None:
        ports = Ports.block(server.port)
        taken = [port for port in ports.all() if not _free(server.bind, port)]
        if taken:
            raise ConflictError(
                f"Port {taken[0]} of {server.bind} is in use by {port_owner(taken[0])}.",
                hint=f"TorchServe takes {PORTS_PER_SERVER} ports from the first on; free them, or choose "
                "another first port with --port or [server] port.",
            )
        return ports
    for block in range(_BLOCKS_TRIED):
        ports = Ports.block(DEFAULT_PORT + 10 * block)
        if all(_free(server.bind, port) for port in ports.all()):
            return ports
    raise ConflictError(f"No free block of {PORTS_PER_SERVER} ports from {DEFAULT_PORT} on.", hint="Use --port.")


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
