"""The server: where it listens, who may ask, how long it waits. Defaults are the safe ones."""

from __future__ import annotations

from dataclasses import dataclass

DEFAULT_PORT = 8080
PORTS_PER_SERVER = 5


@dataclass(frozen=True)
class Ports:
    """The five ports of one TorchServe, in one block so that deployments sit side by side."""

    inference: int
    management: int
    metrics: int
    grpc_inference: int
    grpc_management: int

    @classmethod
    def block(cls, first: int) -> Ports:
        return cls(*range(first, first + PORTS_PER_SERVER))

    def all(self) -> tuple[int, ...]:
        return (self.inference, self.management, self.metrics, self.grpc_inference, self.grpc_management)


@dataclass(frozen=True)
class ServerConfig:
    """``[server]`` of servekit.toml. Times in seconds unless the name says otherwise.

    ``port`` None takes 8080, or the next free block of five when something listens there.
    """

    bind: str = "127.0.0.1"
    port: int | None = None
    auth: bool = True
    token_expiration_min: int = 30 * 24 * 60
    job_queue_size: int = 100
    response_timeout_s: int = 120
    startup_timeout_s: int = 300
    max_request_mib: int = 16

    @property
    def loopback(self) -> bool:
        return self.bind in ("127.0.0.1", "localhost", "::1")
