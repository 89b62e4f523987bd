"""How long does packing take, beside ``cp`` and torch-model-archiver, and how much memory?

    python loadtests/benchmarks/pack.py [--mib 1024] [--rounds 5] [--folder DIR] [--without-archiver]

Random weights (they do not compress) as safetensors, which are copied as they are, and as a file of torch.save,
which becomes safetensors on the way. The source is in the page cache, each output is followed by fsync, rounds are
alternated, medians. servekit's time is that of ``servekit package --no-verify`` without the start of Python: reading
the header or following the pickle, collecting, writing, SHA-256 of each member and CRC-32 included. The proof and the
SHA-256 of the whole archive that it is bound to are printed apart. Memory is the peak of a process that packs above
one that only imports the same.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from servekit.domain.model import ModelSpec
from servekit.system import file_digest, host
from servekit.verbs.package import How, package

CHUNK = 1 << 20
TENSOR_MIB = 64
# A disk that discards what was deleted is busy with that for a while after the sync.
SETTLE_S = 3
HANDLER = "class Handler:\n    def initialize(self, context): ...\n    def handle(self, data, context): return data\n"
NET = "class Net: ...\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: the temporary folder")
    parser.add_argument("--without-archiver", action="store_true", help="leave out torch-model-archiver (a minute)")
    parser.add_argument("--memory-of", metavar="FILE", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory_of is not None:
        memory_of(args.memory_of, args.folder)
        return
    with tempfile.TemporaryDirectory(prefix="servekit-bench-", dir=args.folder) as name:
        folder = Path(name)
        plain, pickled = make_weights(folder, args.mib)
        (folder / "handler.py").write_text(HANDLER, encoding="utf-8")
        (folder / "net.py").write_text(NET, encoding="utf-8")
        contestants: dict[str, tuple[Path, Callable[[], Path]]] = {
            "cp": (plain, lambda: copy(plain, folder / "copy.pt")),
            "servekit, safetensors": (plain, lambda: pack(folder, plain)),
            "servekit, torch.save": (pickled, lambda: pack(folder, pickled)),
        }
        times: dict[str, list[float]] = {}
        for turn in range(args.rounds):
            order = list(contestants.items())
            for label, (source, job) in order[turn % len(order) :] + order[: turn % len(order)]:
                times.setdefault(label, []).append(timed(source, job))
        if not args.without_archiver:
            for form in ("zip-store", "default"):
                job = lambda form=form: archiver(folder, form)  # noqa: E731
                times[f"torch-model-archiver {form}"] = [timed(pickled, job)]
        archive = pack(folder, plain)
        times["SHA-256 of the archive"] = [clock(lambda: file_digest.sha256(archive)) for _ in range(args.rounds)]
        archive.unlink()
        show(times, args.mib)
        for label, source in (("safetensors", plain), ("torch.save", pickled)):
            print(f"memory, {label}: {peak_mib(source, folder) - peak_mib(None, folder):.0f} MiB above the imports")
    print("\n" + ", ".join(f"{key} {value}" for key, value in host.identity().items()))


def make_weights(folder: Path, mib: int) -> tuple[Path, Path]:
    """The same random tensors as a safetensors file and as one of torch.save, written without torch."""
    plain, pickled = folder / "weights.safetensors", folder / "weights.pt"
    count = math.ceil(mib / TENSOR_MIB)
    size = mib * CHUNK // count // 4 * 4
    header = {
        f"layer{i:04}.weight": {"dtype": "F32", "shape": [size // 4], "data_offsets": [i * size, (i + 1) * size]}
        for i in range(count)
    }
    text = json.dumps(header).encode()
    with plain.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _ in range(count):
            for part in range(0, size, CHUNK):
                file.write(os.urandom(min(CHUNK, size - part)))
    flush(plain)
    code = (
        "import sys, torch; sys.path.insert(0, 'handlers')\n"
        "from pathlib import Path\nfrom servekit_worker.engines.safetensors import read\n"
        "torch.save(read(Path(sys.argv[1])), sys.argv[2])"
    )
    root = Path(__file__).resolve().parents[2]
    subprocess.run((sys.executable, "-c", code, str(plain), str(pickled)), cwd=root, check=True)
    flush(pickled)
    return plain, pickled


def timed(source: Path, job: Callable[[], Path]) -> float:
    """Seconds of the job and the fsync of its output; the source is read first, so that it is cached."""
    with source.open("rb") as file:
        while file.read(16 * CHUNK):
            pass
    os.sync()
    time.sleep(SETTLE_S)
    began = time.perf_counter()
    output = job()
    flush(output)
    took = time.perf_counter() - began
    output.unlink()
    return took


def clock(job: Callable[[], object]) -> float:
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def copy(source: Path, target: Path) -> Path:
    # Without a reflink: a file system that shares blocks would copy nothing.
    subprocess.run(("cp", "--reflink=never", str(source), str(target)), check=True)
    return target


def pack(folder: Path, source: Path) -> Path:
    spec = ModelSpec("m", weights=source.name, model="net.py:Net", handler="handler.py")
    return package(spec, folder, folder / "store", lambda _: None, How(verify=False)).path


def memory_of(name: str, folder: Path) -> None:
    """Run in a process of its own: pack (or only import), and print the peak in KiB.

    VmHWM begins anew with a program; getrusage would tell of the one that started it.
    """
    if name:
        pack(folder, folder / name).unlink()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))


def peak_mib(source: Path | None, folder: Path) -> float:
    argv = (sys.executable, __file__, "--memory-of", source.name if source else "", "--folder", str(folder))
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    return int(done.stdout) / 1024


def archiver(folder: Path, form: str) -> Path:
    argv = ("torch-model-archiver", "--model-name", f"m-{form}", "--version", "1", "--handler", "handler.py")
    program = shutil.which(argv[0], path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if program is None:
        sys.exit("torch-model-archiver is not installed: pip install 'servekit[dev]', or --without-archiver")
    rest = ("--serialized-file", "weights.pt", "--archive-format", form, "--export-path", ".", "--force")
    subprocess.run((program, *argv[1:], *rest), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / f"m-{form}.mar"


def show(times: dict[str, list[float]], mib: int) -> None:
    base = statistics.median(times["cp"])
    print(f"{mib} MiB of random weights")
    print(f"{'':32}{'median s':>9}{'min':>8}{'max':>8}{'GB/s':>7}{'x cp':>7}{'rounds':>8}")
    for label, taken in times.items():
        median = statistics.median(taken)
        rate = mib * CHUNK / 1e9 / median
        print(f"{label:32}{median:9.2f}{min(taken):8.2f}{max(taken):8.2f}{rate:7.2f}{median / base:7.2f}{len(taken):8}")


if __name__ == "__main__":
    main()
