"""An NVIDIA driver made of plain values, with the names and the error numbers of the real pynvml.

Put ``Driver(...)`` into ``sys.modules["pynvml"]``. It insists on what the real one insists on: a call
outside of nvmlInit and nvmlShutdown is an error.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

MIB = 1024 * 1024


class NVMLError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


@dataclass
class Card:
    """One GPU. A value that is an int error of ``Driver.NVML_ERROR_*`` in ``broken`` is raised, not returned."""

    uuid: str | bytes
    name: str | bytes = "NVIDIA H100"
    total: int = 80_000 * MIB
    free: int = 79_000 * MIB
    capability: tuple[int, int] = (9, 0)
    processes: tuple[tuple[int, int | None], ...] = ()
    use: int = 63
    power: int = 250_500  # milliwatts
    temperature: int = 41
    clock: int = 1980
    energy: int = 7_000_500  # millijoules since the driver was loaded
    broken: dict[str, int] = field(default_factory=dict)


@dataclass
class Driver:
    cards: tuple[Card, ...] = ()
    init_error: int | None = None
    version: str | bytes = "560.35.03"
    sessions: int = 0
    opened: int = 0

    NVMLError = NVMLError
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_DRIVER_NOT_LOADED = 9
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_TEMPERATURE_GPU = 0
    NVML_CLOCK_SM = 1

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.sessions += 1
        self.opened += 1

    def nvmlShutdown(self) -> None:
        self.sessions -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:
        self._initialised()
        return self.version

    def nvmlDeviceGetCount(self) -> int:
        self._initialised()
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:
        self._initialised()
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:
        self._initialised()
        for card in self.cards:
            if card.uuid == uuid:
                return card
        raise NVMLError(self.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, card: Card) -> str | bytes:
        return self._value(card, "uuid")

    def nvmlDeviceGetName(self, card: Card) -> str | bytes:
        return self._value(card, "name")

    def nvmlDeviceGetMemoryInfo(self, card: Card) -> Any:
        return SimpleNamespace(total=self._value(card, "total"), free=card.free, used=card.total - card.free)

    def nvmlDeviceGetCudaComputeCapability(self, card: Card) -> tuple[int, int]:
        return self._value(card, "capability")

    def nvmlDeviceGetComputeRunningProcesses(self, card: Card) -> list[Any]:
        return [SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in self._value(card, "processes")]

    def nvmlDeviceGetUtilizationRates(self, card: Card) -> Any:
        return SimpleNamespace(gpu=self._value(card, "use"), memory=0)

    def nvmlDeviceGetPowerUsage(self, card: Card) -> int:
        return self._value(card, "power")

    def nvmlDeviceGetTotalEnergyConsumption(self, card: Card) -> int:
        return self._value(card, "energy")

    def nvmlDeviceGetTemperature(self, card: Card, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return self._value(card, "temperature")

    def nvmlDeviceGetClockInfo(self, card: Card, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return self._value(card, "clock")

    def _value(self, card: Card, what: str) -> Any:
        self._initialised()
        if what in card.broken:
            raise NVMLError(card.broken[what])
        return getattr(card, what)

    def _initialised(self) -> None:
        assert self.sessions > 0, "used outside of nvmlInit ... nvmlShutdown"
