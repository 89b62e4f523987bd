"""The proof on a real GPU: ``python tests/gpu/check_proofs.py OUT [--gpu 0] [--minilm DIR]``.

Trains the digits CNN, packages it and (with --minilm, a Hugging Face folder) the MiniLM sentence encoder on the
CPU, as on a build machine; verifies both on the GPU; packages them anew at each fixed precision; starts
``servekit up --gpus N``, which must serve what the record chose; and measures a model that has no record. Prints
the error tables in Markdown; leaves the proofs in OUT. ``--gpu none`` tries the same script on a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[2]
SERVEKIT = (sys.executable, "-m", "servekit")
SENTENCES = (
    "The cat sits on the mat.",
    "A model is packaged once and served on many hosts.",
    "GPU",
    "Half precision keeps eleven bits of the mantissa, bfloat16 keeps eight, and both add up in single precision.",
    "Wo ist der Bahnhof?",
    "Prices rose by 3.5 % in March 2024, the statistics office said on Tuesday, more than economists had expected.",
    "def main(): print('hello, world')",
    "She had never seen a sky like this one: no cloud, no wind, and the smell of rain.",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--minilm", type=Path)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = str(REPO)
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="servekit-proofs-") as name:
        project = Path(name)
        models = make_project(project, args.minilm)
        for model, flags in models.items():
            check(model, flags, project, args, failures)
    print("\n".join(f"FAILED: {failure}" for failure in failures) or "all checks passed")
    return 1 if failures else 0


def make_project(project: Path, minilm: Path | None) -> dict[str, tuple[str, ...]]:
    run(sys.executable, str(REPO / "examples/digits/train.py"), str(project))
    (project / "servekit.toml").unlink()
    digits = ("digits.pt", "--model", "model.py:DigitsCNN", "--handler", "image", "--labels", "labels.txt")
    pixels = ("--resize", "8", "--crop", "8", "--channels", "1", "--mean", "0.3", "--std", "0.35", "--top-k", "10")
    models = {"digits": (*digits, *pixels, "--example", "heldout", "--batch-size", "32")}
    if minilm:
        (project / "sentences").mkdir()
        for number, sentence in enumerate(SENTENCES):
            (project / "sentences" / f"{number}.txt").write_text(sentence, encoding="utf-8")
        models["minilm"] = (str(minilm.resolve()), "--example", "sentences", "--batch-size", "32")
    return models


def check(model: str, flags: tuple[str, ...], project: Path, args: Any, failures: list[str]) -> None:
    started = time.monotonic()
    servekit(project, "package", *flags, "--name", model, "--gpu", "none")
    before = (project / "model_store" / f"{model}.mar").read_bytes()
    found = json.loads(servekit(project, "verify", model, "--gpu", args.gpu, "--json"))
    record = found["record"]
    table(model, record)
    proof = project / "model_store" / f"{model}.proof.json"
    shutil.copy(proof, args.out)
    if (project / "model_store" / f"{model}.mar").read_bytes() != before:
        failures.append(f"{model}: verify touched the archive")
    for precision in ("fp32", "tf32", "bf16", "fp16"):
        fixed = f"{model}-{precision}"
        done = call(project, "package", *flags, "--name", fixed, "--precision", precision, "--gpu", args.gpu, "--json")
        told = json.loads(done.stdout)[0]["record"] if done.returncode == 0 else done.stderr.strip().splitlines()[-2:]
        print(f"{model} at {precision}: exit {done.returncode}: {told['reason'] if done.returncode == 0 else told}")
        (project / "model_store" / f"{fixed}.mar").unlink(missing_ok=True)
        (project / "model_store" / f"{fixed}.proof.json").unlink(missing_ok=True)
    serve(model, record["chosen"], project, args, failures, "by its record")
    proof.unlink()
    served = serve(model, None, project, args, failures, "measured by up")
    if args.gpu != "none" and not proof.exists():
        failures.append(f"{model}: up left no record")
    print(f"{model}: {time.monotonic() - started:.0f} s in all; up without a record took {served:.1f} s")


def serve(model: str, chosen: str | None, project: Path, args: Any, failures: list[str], how: str) -> float:
    """`up`: does the worker compute at the precision that was chosen (None: by the record that `up` makes)?"""
    started = time.monotonic()
    try:
        up = json.loads(servekit(project, "up", model, "--gpus", args.gpu, "--runtime", "local", "--json"))
        took = time.monotonic() - started
        (worker,) = up["workers"]
        print(f"{model} up, {how}: {worker['precision']} on {worker['gpu']}, canary {worker['canary']}, {took:.1f} s")
        path = project / "model_store" / f"{model}.proof.json"
        if chosen is None and path.exists():
            chosen = json.loads(path.read_text())["records"][-1]["chosen"]
        if chosen and not str(worker["precision"]).startswith(str(chosen)):
            failures.append(f"{model}: {chosen} was chosen, {worker['precision']} serves ({how})")
        return took
    finally:
        call(project, "down")


def table(model: str, record: dict[str, Any]) -> None:
    device, versions = record["device"], record["versions"]
    print(f"\n{model} on {device['name']}, driver {device['driver']}, torch {versions['torch']}, {record['created']}")
    print(f"chosen: {record['chosen']} ({record['reason']})")
    print(f"load {record['load_s']:.2f} s, {record['parameters']:,} parameters, {record['flops']:,} FLOPs an item")
    print("| precision | max error | mean error | top-1 | ms a batch | weights MiB | activations MiB | context MiB |")
    print("|---|---|---|---|---|---|---|---|")
    for row in record["precisions"]:
        memory = row["memory"][-1] if row["memory"] else {}
        cells = (
            row["precision"],
            *(format(row[key], ".1e") if row[key] is not None else "-" for key in ("max_rel", "mean_rel")),
            "-" if row["top1"] is None else f"{row['top1']:.1%}",
            "-" if row["batch_ms"] is None else f"{row['batch_ms']:.2f}",
            *(f"{memory[k]:.0f}" if memory.get(k) is not None else "-" for k in ("weights_mib", "activations_mib")),
            f"{memory['context_mib']:.0f}" if memory.get("context_mib") is not None else "-",
        )
        print("| " + " | ".join(cells) + f" | {row['problem'] or row['fault'] or ''}")


def call(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run((*SERVEKIT, *args), cwd=folder, capture_output=True, text=True, check=False)


def servekit(folder: Path, *args: str) -> str:
    done = call(folder, *args)
    if done.returncode != 0:
        print(done.stdout, done.stderr, file=sys.stderr)
        sys.exit(f"servekit {' '.join(args)} ended with {done.returncode}")
    return done.stdout


def run(*argv: str) -> None:
    subprocess.run(argv, check=True)


if __name__ == "__main__":
    sys.exit(main())
