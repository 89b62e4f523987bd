"""Packages of AOTInductor: machine code for one kind of device, so it is checked before it is loaded."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import platform
import re
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from servekit_worker.engines.place import Place, check_batches
from servekit_worker.errors import SetupError

# With and without a top folder: torch 2.6 wrote none.
_MEMBER = re.compile(r"(?:^|.*/)data/aotinductor/([^/]+)/[^/]+$")
_WAY_OUT = (
    "Export with a dynamic batch axis before compiling: torch.export.export(model.eval(), (x,), "
    "dynamic_shapes=({0: torch.export.Dim('batch')},))"
)
_COMPILE = "Compile it on such a host: torch._inductor.aoti_compile_and_package(program, package_path='NAME.pt2')."
# What /proc/cpuinfo must list for the instruction sets that torch names.
_FLAGS = {
    "AVX2": ("avx2",),
    "AVX512": ("avx512f", "avx512dq", "avx512vl", "avx512bw"),
    "AVX512_VNNI": ("avx512_vnni",),
    "AMX_TILE": ("amx_tile",),
    "ASIMD": ("asimd",),
    "SVE": ("sve",),
}


@dataclass(frozen=True)
class Package:
    """What a package records of itself. ``own`` is its precision where its source tells, else fp32.

    ``smallest`` and ``largest`` bound the first axis of the first input (None: no limit recorded).
    """

    metadata: Mapping[str, str]
    own: str
    smallest: int
    largest: int | None


class AotiModel:
    """Calls the compiled code, whose inputs are checked: unchecked, it reads past a batch of another size."""

    def __init__(self, compiled: Any, package: Package) -> None:
        self.own = package.own
        self.source = "compiled into the AOTInductor package"
        self._pad = package.smallest == 2
        self._compiled = compiled

    def __call__(self, *batch: Any, **named: Any) -> Any:
        if self._pad and batch and batch[0].shape[:1] == (1,):
            # Compiled for 2 or more, which is what torch makes of a dynamic axis: the item is sent twice.
            twice = {key: _twice(value) for key, value in named.items()}
            return _first(self._compiled(*map(_twice, batch), **twice))
        return self._compiled(*batch, **named)


def load(path: Path, place: Place) -> AotiModel:
    """The package of ``path`` on ``place.device``, for batches of 1 to ``place.batch_size`` items."""
    package = read(path)
    _check_host(path.name, package.metadata, place.device)
    check_batches(path.name, package.smallest, package.largest, place, _WAY_OUT)
    os.environ["AOTI_RUNTIME_CHECK_INPUTS"] = "1"  # read by the compiled code at its first run
    try:
        open_package = importlib.import_module("torch._inductor").aoti_load_package
        # torch 2.6 has no such parameter: it takes the current device, which is the assigned one.
        takes_index = "device_index" in inspect.signature(open_package).parameters
        index = {"device_index": place.device.index} if place.device.index is not None and takes_index else {}
        compiled = open_package(str(path), **index)
    except Exception as error:
        first = str(error).strip().split("\n")[0]
        raise SetupError(
            f"weights {path.name}: torch {torch.__version__} cannot load this AOTInductor package: {first} "
            "Compile it with the torch that serves it."
        ) from error
    return AotiModel(compiled, package)


def read(path: Path) -> Package:
    """What ``path`` records, without loading its code; SetupError when it is no package with a model."""
    if not zipfile.is_zipfile(path):
        raise SetupError(f"weights {path.name}: not a .pt2 package of AOTInductor (no zip file). {_COMPILE}")
    with zipfile.ZipFile(path) as archive:
        members = {name: found[1] for name in archive.namelist() if (found := _MEMBER.match(name))}
        if "model" not in members.values():
            found = ", ".join(sorted(set(members.values()))) or "no compiled code at all"
            raise SetupError(
                f"weights {path.name}: an AOTInductor package must hold 'model'; it has {found}. {_COMPILE}"
            )
        own = [name for name, model in members.items() if model == "model"]
        metadata = _metadata(archive, own, path.name)
        source = "\n".join(_text(archive, name) for name in own if name.endswith(".cpp"))
    smallest, largest = _batch_range(source)
    return Package(metadata, _precision(source), smallest, largest)


def _metadata(archive: zipfile.ZipFile, members: list[str], name: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for member in sorted(members):
        if member.endswith("metadata.json"):
            try:
                found.update({str(k): str(v) for k, v in json.loads(archive.read(member)).items()})
            except (ValueError, AttributeError) as error:
                raise SetupError(f"weights {name}: {Path(member).name} is not JSON: {error}. {_COMPILE}") from error
    if "AOTI_DEVICE_KEY" not in found:
        raise SetupError(f"weights {name}: the package does not record the device it was compiled for. {_COMPILE}")
    return found


def _check_host(name: str, metadata: Mapping[str, str], device: torch.device) -> None:
    """Refuse code for another device, system, processor or compute capability; all differences at once."""
    if metadata["AOTI_DEVICE_KEY"] != device.type:
        raise SetupError(
            f"weights {name}: compiled for {metadata['AOTI_DEVICE_KEY']}, but this worker is on {device}. {_COMPILE}"
        )
    here = {"AOTI_PLATFORM": sys.platform, "AOTI_MACHINE": platform.machine()}
    if device.type == "cuda":
        major, minor = torch.cuda.get_device_capability(device)
        here["AOTI_COMPUTE_CAPABILITY"] = f"{major}{minor}"
    differ = [
        f"{key.removeprefix('AOTI_').lower().replace('_', ' ')} {metadata[key]} in the package and {value} here"
        for key, value in here.items()
        if metadata.get(key) and metadata[key].lower() != value.lower()
    ]
    if device.type == "cpu" and (flags := cpu_flags()):
        wanted = [flag for word in metadata.get("AOTI_CPU_ISA", "").split() for flag in _FLAGS.get(word, ())]
        lacking = sorted(set(wanted) - flags)
        if lacking:
            differ.append(f"compiled for {metadata['AOTI_CPU_ISA']}, and this processor lacks {', '.join(lacking)}")
    if differ:
        raise SetupError(f"weights {name}: compiled for another machine: {'; '.join(differ)}. {_COMPILE}")


def cpu_flags() -> frozenset[str]:
    """The processor's features as Linux lists them; empty where it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    line = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(line[1].split()) if line else frozenset()


def _batch_range(source: str) -> tuple[int, int | None]:
    """The bounds that the package's own C++ checks; 1 and None for what it does not say."""
    body = re.search(r"void check_input_0\(.*?\n\}", source, re.DOTALL)
    told = body[0] if body else ""
    if exact := re.search(r"if \((\d+) != \w+_size\[0\]\)", told):
        return int(exact[1]), int(exact[1])
    least, most = re.search(r"_size\[0\] < (\d+)\)", told), re.search(r"_size\[0\] > (\d+)\)", told)
    return (max(1, int(least[1])) if least else 1), (int(most[1]) if most else None)


def _precision(source: str) -> str:
    if "torch_dtype_bfloat16" in source:
        return "bf16"
    return "fp16" if "torch_dtype_float16" in source or "torch_dtype_half" in source else "fp32"


def _text(archive: zipfile.ZipFile, name: str) -> str:
    return archive.read(name).decode("utf-8", errors="replace")


def _twice(value: Any) -> Any:
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) and value.shape[:1] == (1,) else value


def _first(outputs: Any) -> Any:
    """Item 0 of two equal ones, as a batch of one."""
    if isinstance(outputs, torch.Tensor):
        return outputs[:1] if outputs.dim() else outputs
    if isinstance(outputs, Mapping):
        return {key: _first(value) for key, value in outputs.items()}
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*map(_first, outputs))
    return type(outputs)(map(_first, outputs)) if isinstance(outputs, (list, tuple)) else outputs
