"""Train DigitsCNN on scikit-learn's handwritten digits and write what `servekit package` takes.

Writes to the folder named on the command line: digits.pt, model.py, labels.txt, servekit.toml, and
heldout/<label>-<number>.png: the images that training never saw.
"""

import shutil
import sys
import time
from pathlib import Path

import numpy as np
import torch
from model import DigitsCNN
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

HELD_OUT = 360
EPOCHS = 15


def main(out: Path) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(2)
    digits = load_digits()
    # 0..16 -> 0..255, as a PNG will hold it: what is trained on is what will be sent.
    pixels = np.rint(digits.images * (255 / 16)).astype(np.uint8)
    train, test, train_labels, test_labels = train_test_split(
        pixels, digits.target, test_size=HELD_OUT, stratify=digits.target, random_state=0
    )
    model = fit(train, train_labels)
    accuracy = (predict(model, test) == torch.tensor(test_labels)).float().mean().item()
    print(f"trained on {len(train)} images, accuracy on {len(test)} held-out images: {accuracy:.1%}")
    write(out, model, test, test_labels)


def batch(pixels: np.ndarray) -> torch.Tensor:
    """(N, 8, 8) uint8 -> (N, 1, 8, 8) float32, normalised as servekit.toml says."""
    return (torch.tensor(pixels).float().unsqueeze(1) / 255 - 0.3) / 0.35


def fit(pixels: np.ndarray, labels: np.ndarray) -> DigitsCNN:
    model, x, y = DigitsCNN(), batch(pixels), torch.tensor(labels)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.05)
    steps = EPOCHS * (len(x) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, max_lr=3e-3, total_steps=steps)
    started = time.monotonic()
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x))[: len(x) // 64 * 64].view(-1, 64):
            shifted = torch.roll(x[rows], tuple(torch.randint(-1, 2, (2,)).tolist()), dims=(2, 3))
            loss = torch.nn.functional.cross_entropy(model(shifted), y[rows], label_smoothing=0.05)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    print(f"{EPOCHS} epochs in {time.monotonic() - started:.0f} s")
    return model.eval()


def predict(model: DigitsCNN, pixels: np.ndarray) -> torch.Tensor:
    with torch.inference_mode():
        return model(batch(pixels)).argmax(dim=1)


def write(out: Path, model: DigitsCNN, pixels: np.ndarray, labels: np.ndarray) -> None:
    here = Path(__file__).parent
    (out / "heldout").mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), out / "digits.pt")
    names = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    (out / "labels.txt").write_text("\n".join(names) + "\n")
    for file in ("model.py", "servekit.toml"):
        shutil.copy(here / file, out / file)
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        Image.fromarray(image).save(out / "heldout" / f"{label}-{number:03d}.png")
    shutil.copy(sorted((out / "heldout").iterdir())[0], out / "example.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
