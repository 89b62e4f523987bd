"""The main job from beginning to end, with the commands a user would type (`make demo`).

Trains a digits classifier, packages it, starts TorchServe, sends every held-out image over HTTP,
compares the server's answers with in-process ones item by item, and load-tests it.
"""

import json
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import requests
import torch
from PIL import Image

HERE = Path(__file__).parent.resolve()
SERVEKIT = (sys.executable, "-m", "servekit")
WANTED_ACCURACY = 0.95
TOLERANCE = 1e-4


def main(out: Path) -> int:
    out.mkdir(parents=True, exist_ok=True)
    out = out.resolve()
    step("Train a small CNN on scikit-learn's handwritten digits")
    run(sys.executable, str(HERE / "train.py"), str(out))
    subprocess.run((*SERVEKIT, "down", "--name", "demo"), cwd=out, capture_output=True, check=False)
    step("Package it")
    servekit(out, "package")
    try:
        step("Start TorchServe; wait until the model has answered")
        servekit(out, "up", "--runtime", "local", "--name", "demo")
        step("Send every held-out image over HTTP, and compare with the same model in this process")
        good = compare(out)
        step("Load test, 20 s")
        report = out / "report"
        servekit(
            out, "loadtest", "--name", "demo", "--model", "digits", "--payload", "heldout",
            "--users", "16", "--duration", "20s", "--warmup", "3s", "--out", str(report),
        )  # fmt: skip
    finally:
        step("Stop everything")
        servekit(out, "down", "--name", "demo")
    print(f"\nLoad-test report: {report / 'report.html'}")
    return 0 if good else 1


def compare(out: Path) -> bool:
    """Every held-out image: server against this process, item by item; and the accuracy."""
    files = sorted((out / "heldout").glob("*.png"))
    served = ask_server(out, files)
    local = ask_model(out, files)
    truth = [int(file.name.split("-")[0]) for file in files]
    same = sum(s["index"] == index for s, (index, _) in zip(served, local, strict=True))
    widest = max(abs(s["score"] - score) for s, (_, score) in zip(served, local, strict=True))
    accuracy = sum(s["index"] == label for s, label in zip(served, truth, strict=True)) / len(files)
    print(f"{len(files)} images: {same} of {len(files)} classes equal, largest score difference {widest:.1e}")
    print(f"accuracy of the server on images it never saw: {accuracy:.1%}")
    return same == len(files) and widest < TOLERANCE and accuracy >= WANTED_ACCURACY


def ask_server(out: Path, files: list[Path]) -> list[dict]:
    """The server's best class for each file, eight requests at a time."""
    token = json.loads(read(out, "token", "show", "--name", "demo", "--json"))["token"]
    (deployment,) = json.loads(read(out, "status", "--name", "demo", "--json"))
    ports = deployment["state"]["ports"]
    url = f"http://127.0.0.1:{ports['inference']}/predictions/digits"

    def ask(file: Path) -> dict:
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "image/png"}
        answer = requests.post(url, data=file.read_bytes(), headers=headers, timeout=60)
        answer.raise_for_status()
        return answer.json()["predictions"][0]

    started = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, files))
    print(f"{len(files)} requests in {time.monotonic() - started:.1f} s")
    return answers


def ask_model(out: Path, files: list[Path]) -> list[tuple[int, float]]:
    """(class, score) by plain PyTorch: no servekit, no TorchServe."""
    from model import DigitsCNN

    model = DigitsCNN()
    model.load_state_dict(torch.load(out / "digits.pt", weights_only=True))
    model.eval()
    pixels = torch.stack([torch.from_numpy(np.array(Image.open(file))) for file in files])
    with torch.inference_mode():
        scores = model((pixels.unsqueeze(1).float() / 255 - 0.3) / 0.35).softmax(dim=1)
    best = scores.max(dim=1)
    return list(zip(best.indices.tolist(), best.values.tolist(), strict=True))


def step(title: str) -> None:
    print(f"\n=== {title}", flush=True)


def servekit(folder: Path, *args: str) -> None:
    print(f"$ servekit {shlex.join(args)}", flush=True)
    run(*SERVEKIT, *args, cwd=folder)


def run(*argv: str, cwd: Path | None = None) -> None:
    done = subprocess.run(argv, cwd=cwd, check=False)
    if done.returncode != 0:
        sys.exit(done.returncode)


def read(folder: Path, *args: str) -> str:
    return subprocess.run(
        (*SERVEKIT, *args), cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
