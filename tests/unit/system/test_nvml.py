from __future__ import annotations

import sys

import pytest
from fakes.pynvml import MIB, Card, Driver

from servekit.domain.gpu import Gpu
from servekit.errors import GpuError
from servekit.system import nvml
from servekit.system.nvml import GpuProcess


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch):
    def put(driver: object) -> None:
        monkeypatch.setitem(sys.modules, "pynvml", driver)

    return put


def test_two_gpus(install) -> None:
    driver = Driver((Card("GPU-a"), Card("GPU-b", "Tesla T4", 15_109 * MIB, 14_000 * MIB, (7, 5))))
    install(driver)
    assert nvml.inventory() == (
        Gpu(0, "GPU-a", "NVIDIA H100", 80_000, 79_000, (9, 0)),
        Gpu(1, "GPU-b", "Tesla T4", 15_109, 14_000, (7, 5)),
    )
    assert nvml.driver_version() == "560.35.03"
    assert (driver.opened, driver.sessions) == (2, 0), "each session was closed"


def test_names_were_bytes_in_older_releases(install) -> None:
    install(Driver((Card(b"GPU-a", b"Tesla K80"),), version=b"470.1"))
    assert nvml.inventory()[0].name == "Tesla K80"
    assert nvml.inventory()[0].uuid == "GPU-a"
    assert nvml.driver_version() == "470.1"


@pytest.mark.parametrize("error", [Driver.NVML_ERROR_NOT_SUPPORTED, Driver.NVML_ERROR_NO_PERMISSION])
def test_what_a_driver_does_not_tell_is_none(install, error: int) -> None:
    card = Card("GPU-a", broken={"total": error, "capability": error, "processes": error})
    install(Driver((card,)))
    assert nvml.inventory() == (Gpu(0, "GPU-a", "NVIDIA H100", None, None, None),)
    assert nvml.processes("GPU-a") is None


@pytest.mark.parametrize(
    "driver",
    [
        None,  # what Python keeps in sys.modules for a module that cannot be imported
        Driver(init_error=Driver.NVML_ERROR_LIBRARY_NOT_FOUND),
        Driver(init_error=Driver.NVML_ERROR_DRIVER_NOT_LOADED),
        Driver(),
    ],
)
def test_no_driver_is_an_answer(install, driver: Driver | None) -> None:
    install(driver)
    assert nvml.inventory() == ()


def test_without_a_driver_nothing_else_is_known(install) -> None:
    install(Driver(init_error=Driver.NVML_ERROR_LIBRARY_NOT_FOUND))
    assert nvml.driver_version() is None
    assert nvml.processes("GPU-a") is None


def test_a_driver_that_fails_is_an_error(install) -> None:
    install(Driver(init_error=999))
    with pytest.raises(GpuError, match="does not answer: NVML error 999"):
        nvml.inventory()
    driver = Driver((Card("GPU-a", broken={"uuid": Driver.NVML_ERROR_GPU_IS_LOST}),))
    install(driver)
    with pytest.raises(GpuError, match="failed: NVML error 15"):
        nvml.inventory()
    assert driver.sessions == 0


def test_processes(install) -> None:
    install(Driver((Card("GPU-a"), Card("GPU-b", processes=((11, 3 * MIB + 5), (12, None))))))
    assert nvml.processes("GPU-b") == (GpuProcess(11, 3), GpuProcess(12, None))
    assert nvml.processes("GPU-a") == ()
