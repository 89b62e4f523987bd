"""How long does packing take, beside ``cp`` and torch-model-archiver?

    python loadtests/benchmarks/pack.py [--mib 1024] [--rounds 5] [--folder DIR] [--without-archiver]

Random weights (they do not compress), the source in the page cache, each output followed by fsync, rounds
alternated, medians. servekit's time is the archive writer as `servekit package` uses it, SHA-256 and CRC-32
included; the check of weights against their class, which imports torch, is not part of writing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from servekit.system import host
from servekit.system.zipstream import ZipStream

CHUNK = 1 << 20
HANDLER = "class Handler:\n    def initialize(self, context): ...\n    def handle(self, data, context): return data\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="on the disk to be measured; default: the temporary folder")
    parser.add_argument("--without-archiver", action="store_true", help="leave out torch-model-archiver (a minute)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="servekit-bench-", dir=args.folder) as name:
        folder = Path(name)
        source = folder / "weights.pt"
        with source.open("wb") as file:
            for _ in range(args.mib):
                file.write(os.urandom(CHUNK))
        flush(source)
        (folder / "handler.py").write_text(HANDLER, encoding="utf-8")
        contestants: dict[str, Callable[[], Path]] = {
            "cp": lambda: copy(source, folder / "copy.pt"),
            "servekit": lambda: pack(source, folder / "model.mar"),
        }
        times: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            for label, job in contestants.items():
                times.setdefault(label, []).append(timed(source, job))
        if not args.without_archiver:
            for form in ("zip-store", "default"):
                times[f"torch-model-archiver {form}"] = [timed(source, lambda form=form: archiver(folder, form))]
    show(times, args.mib)


def timed(source: Path, job: Callable[[], Path]) -> float:
    """Seconds of the job and the fsync of its output; the source is read first, so that it is cached."""
    with source.open("rb") as file:
        while file.read(16 * CHUNK):
            pass
    os.sync()
    began = time.perf_counter()
    output = job()
    flush(output)
    took = time.perf_counter() - began
    output.unlink()
    return took


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


def pack(source: Path, target: Path) -> Path:
    with ZipStream(target) as stream:
        stream.add_bytes("MAR-INF/MANIFEST.json", b"{}")
        stream.add_file(source.name, source)
        stream.finish()
    return target


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
    print(f"{'':32}{'median s':>9}{'min':>8}{'max':>8}{'GB/s':>7}{'x cp':>7}{'rounds':>8}")
    for label, taken in times.items():
        median = statistics.median(taken)
        rate = mib * CHUNK / 1e9 / median
        print(f"{label:32}{median:9.2f}{min(taken):8.2f}{max(taken):8.2f}{rate:7.2f}{median / base:7.2f}{len(taken):8}")
    print(f"\n{mib} MiB of random bytes. " + ", ".join(f"{key} {value}" for key, value in host.identity().items()))


if __name__ == "__main__":
    main()
