"""The main job on a real GPU: ``python tests/gpu/check_host.py OUT [--gpus 0] [--seconds 20]``.

Packages a ResNet-50 (random weights: speed and placement are asked for, not accuracy), starts it with
``servekit up --gpus N``, compares its answers with the same model in this process, looks each worker up in
NVML's process list, and load-tests it. Prints a short table; leaves OUT/<precision>/report.html and .json.
With ``--gpus none`` the same script runs on the CPU, to try it before a GPU is at hand.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

REPO = Path(__file__).resolve().parents[2]
SERVEKIT = (sys.executable, "-m", "servekit")
# Relative, of the best score. The server batches, this process does not: kernels differ, and so do roundings.
TOLERANCE = {"fp32": 1e-4, "tf32": 1e-2, "bf16": 5e-2, "fp16": 1e-2}
MEAN, STD = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpus", default="0")
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--users", type=int, default=64)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--precisions", default="auto,fp32")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = str(REPO)
    failed = False
    rows = []
    with tempfile.TemporaryDirectory(prefix="servekit-gpu-") as name:
        project = Path(name)
        photos = make_project(project)
        for precision in args.precisions.split(","):
            row = one(project, photos, precision, args)
            rows.append(row)
            failed |= not row["ok"]
    print(json.dumps(rows, indent=1), file=(args.out / "rows.json").open("w"))
    header = (
        "precision",
        "runs as",
        "workers",
        "on",
        "answers right",
        "max |d score| / score",
        "req/s",
        "p50 ms",
        "p99 ms",
    )
    print("\n" + " | ".join((*header, "GPU busy %", "power W", "J/request", "memory MiB")))
    for row in rows:
        print(" | ".join(str(value) for key, value in row.items() if key != "ok"))
    print(f"torch {torch.__version__}, python {sys.version.split()[0]}, {device_name()}")
    return 1 if failed else 0


def device_name() -> str:
    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"


def make_project(project: Path) -> list[Path]:
    """Weights, model file, labels, and 16 JPEGs of 500 x 375 with photograph-like content."""
    torch.manual_seed(0)
    shutil.copy(REPO / "examples" / "resnet50" / "resnet50.py", project)
    sys.path.insert(0, str(project))
    from resnet50 import ResNet50

    (project / "labels.txt").write_text("\n".join(f"class {i}" for i in range(1000)))
    folder = project / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0)
    for number in range(16):
        coarse = noise.integers(0, 256, (12 + number, 16, 3), dtype=np.uint8)
        picture = Image.fromarray(coarse).resize((500, 375), Image.Resampling.BICUBIC)
        grain = noise.normal(0, 6, (375, 500, 3))
        Image.fromarray(np.clip(np.asarray(picture) + grain, 0, 255).astype(np.uint8)).save(
            folder / f"{number:02d}.jpg", quality=88
        )
    photos = sorted(folder.iterdir())
    torch.save(
        settled(ResNet50(), torch.stack([pixels(photo) for photo in photos])).state_dict(), project / "resnet50.pt"
    )
    return photos


def settled(model: torch.nn.Module, images: torch.Tensor) -> torch.nn.Module:
    """Random weights with the images' own batch statistics: without them the logits overflow the softmax
    to a single 1.0, and a comparison of scores could not fail."""
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # a plain average over what is seen
    with torch.no_grad():
        model.train()(images)
    return model.eval()


def pixels(photo: Path) -> torch.Tensor:
    """(3, 224, 224) as the image handler's options say, written a second time and apart from it."""
    picture = Image.open(photo).convert("RGB")
    scale = 256 / min(picture.size)
    picture = picture.resize([round(side * scale) for side in picture.size], Image.Resampling.BILINEAR)
    left, top = (picture.width - 224) // 2, (picture.height - 224) // 2
    values = torch.from_numpy(np.array(picture.crop((left, top, left + 224, top + 224)))).float() / 255
    return ((values - MEAN) / STD).permute(2, 0, 1)


def one(project: Path, photos: list[Path], precision: str, args: argparse.Namespace) -> dict[str, Any]:
    """Package, up, compare, look up, load, down: one row of the table."""
    (project / "servekit.toml").write_text(
        f'schema = 1\n[[models]]\nname = "resnet50"\nweights = "resnet50.pt"\nmodel = "resnet50.py:ResNet50"\n'
        f'handler = "image"\nlabels = "labels.txt"\nexample = "photos/00.jpg"\nprecision = "{precision}"\n'
        f"batch_size = 16\nmax_batch_delay_ms = 4\nworkers = {args.workers}\n"
    )
    run(project, "package")
    try:
        run(project, "up", "--gpus", args.gpus, "--runtime", "local")
        (status,) = json.loads(read(project, "status", "--json"))
        reports = [json.loads(path.read_text()) for path in (Path(status["state"]["home"]) / "workers").iterdir()]
        equal, widest = compare(project, photos, reports[0]["precision"], reports[0]["device"])
        out = (args.out / precision).resolve()
        run(
            project, "loadtest", "--model", "resnet50", "--payload", "photos", "--users", str(args.users),
            "--duration", f"{args.seconds}s", "--warmup", "5s", "--out", str(out),
        )  # fmt: skip
    finally:
        run(project, "down")
    report = json.loads((out / "report.json").read_text())
    gpu = report["gpus"][0] if report["gpus"] else {}
    stats = report["stats"]
    places = {(row["gpu"], row["checked"]) for row in status["workers"]}
    ok = equal == len(photos) and not stats["failures"] and all(not gpu.startswith("WRONG") for gpu, _ in places)
    if args.gpus != "none":
        ok &= all(report["device"].startswith("cuda:") for report in reports)
    percentiles = dict(stats["latency"]["percentiles"])
    return {
        "precision": precision,
        "runs": reports[0]["precision"],
        "workers": len(reports),
        "on": ", ".join(sorted(f"{gpu} by {how}" for gpu, how in places)),
        "equal": f"{equal}/{len(photos)}",
        "widest": f"{widest:.1e}",
        "throughput": round(stats["throughput"]),
        "p50": round(percentiles["p50"], 1),
        "p99": round(percentiles["p99"], 1),
        "busy": gpu.get("use_mean"),
        "power": gpu.get("power_mean_w"),
        "energy": gpu.get("energy_per_request_j"),
        "memory": gpu.get("memory_max_mib"),
        "ok": ok,
    }


def compare(project: Path, photos: list[Path], precision: str, device: str) -> tuple[int, float]:
    """Top-1 of the server against the same model here, same device and precision, without servekit's code."""
    from resnet50 import ResNet50

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"
    model = ResNet50()
    model.load_state_dict(torch.load(project / "resnet50.pt", weights_only=True))
    model = model.eval().to(device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    equal, widest = 0, 0.0
    for photo in photos:
        image = pixels(photo).unsqueeze(0).to(device)
        with torch.inference_mode(), torch.autocast(device.split(":")[0], dtype=dtype, enabled=dtype is not None):
            scores = model(image).float().softmax(dim=1)[0].cpu()
        best = json.loads(read(project, "predict", "resnet50", str(photo)))["predictions"][0]
        # Random weights give nearly flat scores: the server's choice must be as good as ours, the index may differ.
        top = scores.max().item()
        difference = abs(best["score"] - top) / top
        equal += difference < TOLERANCE[precision] and scores[best["index"]].item() > (1 - TOLERANCE[precision]) * top
        widest = max(widest, difference)
    return equal, widest


def run(project: Path, *args: str) -> None:
    print(f"$ servekit {' '.join(args)}", flush=True)
    subprocess.run((*SERVEKIT, *args), cwd=project, check=True)


def read(project: Path, *args: str) -> str:
    return subprocess.run((*SERVEKIT, *args), cwd=project, check=True, stdout=subprocess.PIPE, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
