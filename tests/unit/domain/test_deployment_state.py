from __future__ import annotations

import json
from pathlib import Path

import pytest
from nouns import deployment, gpu, served, state

from servekit.domain.deployment import State
from servekit.domain.gpu import Gpu
from servekit.domain.server import Ports


@pytest.mark.parametrize(
    "original",
    [
        state(),
        state(gpus=(), models=(), auth=False, container="abc", image="servekit:1", runtime="docker"),
        state(gpus=(Gpu(0, "GPU-1", "old"),)),
    ],
)
def test_a_state_survives_json(original: State) -> None:
    again = State.from_dict(json.loads(json.dumps(original.to_dict())))
    assert again == original
    assert isinstance(again.gpus, tuple)


def test_a_state_knows_its_models_and_key_file() -> None:
    one = state()
    assert one.model("digits") is one.models[0]
    assert one.model("other") is None
    assert one.key_file == Path(one.home) / "key_file.json"


@pytest.mark.parametrize(
    ("bind", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("10.1.2.3", "10.1.2.3"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::1", "[::1]"),
        ("fe80::2", "[fe80::2]"),
    ],
)
def test_urls_can_be_connected_to(bind: str, host: str) -> None:
    one = state(bind=bind, ports=Ports.block(8090))
    assert one.inference_url == f"http://{host}:8090"
    assert one.management_url == f"http://{host}:8091"


def test_ports_come_in_a_block() -> None:
    assert Ports.block(8080) == Ports(8080, 8081, 8082, 8083, 8084)
    assert Ports.block(8080).all() == (8080, 8081, 8082, 8083, 8084)


@pytest.mark.parametrize(
    ("config", "kind"),
    [
        ({}, "foreign"),
        ({"handler": "x"}, "foreign"),
        ({"handler": {}}, "foreign"),
        ({"handler": {"kind": "tensor"}}, "tensor"),
    ],
)
def test_whose_archive_it_is(config: dict[str, object], kind: str) -> None:
    assert served(config=config).handler_kind == kind


def test_workers_are_counted_over_models() -> None:
    assert deployment(served("a", workers=2), served("b", workers=3), gpus=(gpu(0),)).worker_count == 5
