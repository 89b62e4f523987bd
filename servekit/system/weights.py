"""What kind of weights a file holds, told from its content without torch."""

from __future__ import annotations

import zipfile
from pathlib import Path

from servekit.errors import ModelError

STATE_DICT = "state_dict"
TORCHSCRIPT = "torchscript"


def detect(path: Path) -> tuple[str, str]:
    """(format, how it was told). ModelError for what is missing, empty or not made by torch.save."""
    if path.is_symlink() and not path.exists():
        raise ModelError(f"{path} is a link that leads nowhere.", hint="Name the weights: servekit package WEIGHTS ...")
    if not path.exists():
        raise ModelError(f"{path} does not exist.", hint="Name the weights: servekit package WEIGHTS ...")
    if not path.is_file():
        raise ModelError(f"{path} is not a file.", hint="Name the file that torch.save wrote.")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty.", hint="Save the weights again; the disk may have been full.")
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            start = file.read(2)
        if start[:1] == b"\x80":
            raise ModelError(
                f"{path} is a pickle of torch before 1.6, or of something else.",
                hint="Load it where you trust it and save it anew: torch.save(model.state_dict(), 'weights.pt')",
            )
        if start == b"PK":
            raise ModelError(
                f"{path} is truncated: it begins like a file of torch.save, but its end is missing.",
                hint="Copy or save it again; the disk may have been full.",
            )
        raise ModelError(
            f"{path} is not a file of torch.save or torch.jit.save (it starts with {start!r}).",
            hint="Save a state dict: torch.save(model.state_dict(), 'weights.pt')",
        )
    try:
        with zipfile.ZipFile(path) as archive:
            tails = {name.partition("/")[2] for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise ModelError(f"{path} is damaged: {error}.") from error
    if "constants.pkl" in tails and any(tail.startswith("code/") for tail in tails):
        return TORCHSCRIPT, "it holds code/ and constants.pkl"
    if "data.pkl" in tails:
        return STATE_DICT, "it holds data.pkl and no code/"
    raise ModelError(f"{path} is a zip, but not one of torch.save (no data.pkl inside).")
