"""GPUs and folders as options of docker run."""

from __future__ import annotations

from pathlib import Path

import pytest

from servekit.domain.gpu import Gpu, GpuPlan
from servekit.render.docker_options import gpu_options, mount_option


def _plan(*indexes: int) -> GpuPlan:
    return GpuPlan(tuple(Gpu(index, f"GPU-{index}", "Pretended") for index in indexes))


@pytest.mark.parametrize(
    ("indexes", "request_", "mask"),
    [
        ((0,), '"device=0"', "0"),
        ((3,), '"device=3"', "0"),
        ((0, 2), '"device=0,2"', "0,1"),
        # The engine numbers the passed GPUs 0, 1, 2 by address; the mask brings back the order asked for.
        ((5, 0, 2), '"device=5,0,2"', "2,0,1"),
    ],
)
def test_passes_the_planned_gpus_and_keeps_their_order(indexes: tuple[int, ...], request_: str, mask: str) -> None:
    options = gpu_options(_plan(*indexes))

    assert options[:2] == ("--gpus", request_)
    assert f"CUDA_VISIBLE_DEVICES={mask}" in options
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in options


def test_without_gpus_none_are_passed_even_by_an_nvidia_default_runtime() -> None:
    assert gpu_options(_plan()) == ("--env", "NVIDIA_VISIBLE_DEVICES=void")


@pytest.mark.parametrize(
    ("source", "read_only", "value"),
    [
        ("/home/ä b/x:y", False, "type=bind,source=/home/ä b/x:y,target=/t"),
        ("/home/a", True, "type=bind,source=/home/a,target=/t,readonly"),
        ("/home/a,b", True, 'type=bind,"source=/home/a,b",target=/t,readonly'),
        ('/home/a"b', False, 'type=bind,"source=/home/a""b",target=/t'),
    ],
)
def test_mounts_any_path(source: str, read_only: bool, value: str) -> None:
    assert mount_option(Path(source), Path("/t"), read_only=read_only) == ("--mount", value)
