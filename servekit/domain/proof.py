"""The proof: what an archive answered, how exactly and how fast, on one kind of device.

``NAME.proof.json`` lies beside ``NAME.mar`` and is bound to it by the archive's SHA-256. It holds one record
a device, driver and set of versions: the archive itself stays the same on every host.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCHEMA = 1
TOLERANCE = {"fp32": 1e-5, "tf32": 5e-3, "fp16": 5e-3, "bf16": 2e-2}
"""The largest error that a precision may have, relative to the largest number of the fp32 answer."""
TOP1 = 0.995
"""The share of examples whose best class must stay the best."""
# A precision is only worth its error when it is faster by more than the noise of the measurement.
_WORTH = 0.95
_ORDER = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True)
class Device:
    """Where a record was made. ``name`` is NVML's name of the GPU, or the CPU's; ``driver`` None on a CPU."""

    kind: str
    name: str
    capability: str | None = None
    memory_mib: int | None = None
    driver: str | None = None

    def __str__(self) -> str:
        return self.name if self.kind == "cuda" else f"CPU ({self.name})"


@dataclass(frozen=True)
class Memory:
    """Memory at one batch size, MiB. ``activations`` is the peak above the weights; ``context`` what the
    CUDA context takes of the GPU beside torch's allocator (None on a CPU, or where the driver does not tell)."""

    batch: int
    weights_mib: float
    activations_mib: float
    context_mib: float | None = None


@dataclass(frozen=True)
class PrecisionResult:
    """One row of the error table.

    ``max_rel``, ``mean_rel``: against fp32 on the same device, relative to the largest and to the mean
    magnitude of the fp32 answer; None for the reference itself, and where answers cannot be compared.
    ``top1``: share of examples whose best class is that of fp32, None where there is no best class.
    ``batch_ms``: time of one full batch in the handler, without decoding: the least median of five blocks.
    ``problem``: why this precision could not be measured. ``fault``: answers of another structure, NaN or
    infinity; it never passes. ``layers``: where the error starts, for a row beyond its tolerance.
    ``compared``: how, or why not.
    """

    precision: str
    max_rel: float | None = None
    mean_rel: float | None = None
    top1: float | None = None
    batch_ms: float | None = None
    load_s: float | None = None
    memory: tuple[Memory, ...] = ()
    problem: str | None = None
    fault: str | None = None
    layers: tuple[str, ...] = ()
    compared: str = ""

    @property
    def measured(self) -> bool:
        return self.problem is None


@dataclass(frozen=True)
class Tolerance:
    """Largest ``max_rel`` a precision, and least ``top1``. ``top1_counts``: the classes mean something."""

    by_precision: Mapping[str, float] = field(default_factory=lambda: dict(TOLERANCE))
    top1: float = TOP1
    top1_counts: bool = True

    def beyond(self, row: PrecisionResult) -> str | None:
        """Why a measured row does not pass, or None. The reference passes; so does what cannot be compared."""
        if row.fault:
            return row.fault
        limit = self.by_precision.get(row.precision, TOLERANCE[row.precision])
        if row.max_rel is not None and not row.max_rel <= limit:  # NaN is no pass
            return f"largest relative error {row.max_rel:.2g}, allowed {limit:.2g}"
        if self.top1_counts and row.top1 is not None and row.top1 < self.top1:
            return f"the best class stays in {row.top1:.1%} of the examples, wanted {self.top1:.1%}"
        return None


@dataclass(frozen=True)
class Choice:
    """The precision that serves and why; ``problem`` when the wanted one does not pass."""

    precision: str | None
    reason: str
    problem: str | None = None


def choose(wanted: str, rows: Sequence[PrecisionResult], tolerance: Tolerance, device: Device) -> Choice:
    """Pick the precision for ``device``.

    A fixed one must pass. ``auto`` on a GPU takes the fastest that passes; on a CPU it is fp32. A fixed
    precision that this device cannot compute (fp16 on a CPU) is left open, with ``precision`` None.
    """
    by_name = {row.precision: row for row in rows}
    if wanted != "auto":
        row = by_name.get(wanted)
        if row is None or not row.measured:
            why = row.problem if row is not None else "it was not measured"
            return Choice(None, f"{wanted} is open on {device}: {why}")
        if problem := tolerance.beyond(row):
            return Choice(None, f"{wanted} does not pass", _beyond(row, problem, rows, tolerance))
        return Choice(wanted, f"as configured; {_errors(row)}")
    if device.kind != "cuda":
        return Choice("fp32", "auto: the CPU")
    return _fastest(rows, tolerance, device)


def _fastest(rows: Sequence[PrecisionResult], tolerance: Tolerance, device: Device) -> Choice:
    passing = [row for row in rows if row.measured and row.batch_ms is not None and tolerance.beyond(row) is None]
    if not passing:
        return Choice("fp32", f"auto: nothing could be timed on {device}")
    best = min(passing, key=lambda row: row.batch_ms or 0.0)
    # Among equally fast ones the more exact wins: order is that of the bits kept.
    for row in sorted(passing, key=lambda row: _ORDER.index(row.precision)):
        if (best.batch_ms or 0.0) >= _WORTH * (row.batch_ms or 0.0):
            best = row
            break
    fp32 = next((row for row in passing if row.precision == "fp32"), None)
    ratio = f", {fp32.batch_ms / best.batch_ms:.2f} x fp32" if fp32 and fp32.batch_ms and best.batch_ms else ""
    return Choice(best.precision, f"auto: measured on {device}: {best.batch_ms:.2f} ms a batch{ratio}, {_errors(best)}")


def _errors(row: PrecisionResult) -> str:
    if row.precision == "fp32" and row.max_rel is None:
        return "the reference"
    if row.max_rel is None:
        return row.compared or "not comparable"
    top1 = f", top-1 {row.top1:.1%}" if row.top1 is not None else ""
    return f"error {row.max_rel:.1e}{top1}"


def _beyond(row: PrecisionResult, problem: str, rows: Sequence[PrecisionResult], tolerance: Tolerance) -> str:
    others = [
        other.precision
        for other in rows
        if other is not row and other.measured and tolerance.beyond(other) is None and other.precision != row.precision
    ]
    where = f" It starts at: {'; '.join(row.layers)}." if row.layers else ""
    passing = f" {', '.join(others)} would pass." if others else ""
    return f"at {row.precision} the answers leave the tolerance: {problem}.{where}{passing}"


@dataclass(frozen=True)
class Example:
    """An example and the answer it got at fp32. ``answer`` is JSON, or None when it is kept as ``sha256``
    alone (no JSON, or above 64 KiB)."""

    file: str
    status: int
    content_type: str | None
    answer: Any
    sha256: str


@dataclass(frozen=True)
class Batches:
    """What was seen about batching. ``max_rel``: how far answers depended on the batch they were in."""

    sizes: tuple[int, ...] = ()
    max_rel: float | None = None
    malformed: str = "not tried"


@dataclass(frozen=True)
class Record:
    """One proof on one device. ``created`` in UTC, ISO 8601. ``flops`` an item, matrix products only."""

    device: Device
    versions: Mapping[str, str | None]
    created: str
    wanted: str
    chosen: str | None
    reason: str
    examples: tuple[Example, ...] = ()
    batches: Batches = Batches()
    precisions: tuple[PrecisionResult, ...] = ()
    tolerance: Mapping[str, float] = field(default_factory=dict)
    load_s: float | None = None
    host_mib: float | None = None
    parameters: int | None = None
    flops: int | None = None
    trained: str = ""
    warnings: tuple[str, ...] = ()

    def same_place(self, other: Record) -> bool:
        """Whether ``other`` says the same thing anew, so that it takes this record's place."""
        return self.device == other.device and self.versions == other.versions


@dataclass(frozen=True)
class Proof:
    """All records of one archive. ``skipped`` says why there is none (``--no-verify``)."""

    name: str
    version: str
    sha256: str
    records: tuple[Record, ...] = ()
    skipped: str | None = None

    def with_record(self, record: Record) -> Proof:
        kept = tuple(known for known in self.records if not known.same_place(record))
        return dataclasses.replace(self, records=(*kept, record), skipped=None)

    def on(self, kind: str, name: str | None, torch: str | None) -> Record | None:
        """The newest record of this GPU model (``kind`` cuda, NVML's name) or of a CPU, made with this torch.

        Other CPUs count as one kind: their arithmetic agrees far within any tolerance.
        """
        for record in reversed(self.records):
            here = record.device.kind == kind and (kind == "cpu" or record.device.name == name)
            if here and (torch is None or _release(record.versions.get("torch")) == _release(torch)):
                return record
        return None

    def standing(self) -> str:
        """One clause for tables: where it was proven, or that it was not."""
        if self.records:
            return "proven on " + ", ".join(dict.fromkeys(str(record.device) for record in self.records))
        return f"not proven ({self.skipped})" if self.skipped else "not proven"


def _release(version: str | None) -> str:
    """Without the label of the build: torch says 2.11.0+cu130 where its package may say 2.11.0."""
    return (version or "").partition("+")[0]


def to_dict(proof: Proof) -> dict[str, Any]:
    archive = {"name": proof.name, "version": proof.version, "sha256": proof.sha256}
    records = [dataclasses.asdict(record) for record in proof.records]
    return {"schema": SCHEMA, "archive": archive, "skipped": proof.skipped, "records": records}


def from_dict(data: Mapping[str, Any]) -> Proof:
    """Raises KeyError, TypeError or ValueError for what is no proof of this schema."""
    if data["schema"] != SCHEMA:
        raise ValueError(f"its schema is {data['schema']!r}; this servekit reads {SCHEMA}")
    archive = data["archive"]
    records = tuple(record_from_dict(record) for record in data["records"])
    return Proof(str(archive["name"]), str(archive["version"]), str(archive["sha256"]), records, data.get("skipped"))


def record_from_dict(data: Mapping[str, Any]) -> Record:
    return Record(
        **{
            **data,
            "device": Device(**data["device"]),
            "versions": dict(data["versions"]),
            "examples": tuple(Example(**example) for example in data["examples"]),
            "batches": Batches(**{**data["batches"], "sizes": tuple(data["batches"]["sizes"])}),
            "precisions": tuple(precision_from_dict(row) for row in data["precisions"]),
            "warnings": tuple(data["warnings"]),
        }
    )


def precision_from_dict(row: Mapping[str, Any]) -> PrecisionResult:
    memory = tuple(Memory(**entry) for entry in row.get("memory", ()))
    return PrecisionResult(**{**row, "memory": memory, "layers": tuple(row.get("layers", ()))})
