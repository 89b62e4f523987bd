"""Does torch, under the server's device mask, compute on every GPU that was promised?

Run as a script in a child process; prints one JSON line::

    {"torch": "2.13.0", "cuda": "13.0" | null, "devices": [{"name", "uuid", "error": str | null}], "error": null}

Libraries present do not prove a working GPU: a driver older than the CUDA of the wheel, or a wheel
without this architecture, shows only when a kernel runs. So one small product runs on each device.
"""

from __future__ import annotations

import json


def main() -> None:
    result: dict[str, object] = {"torch": None, "cuda": None, "devices": [], "error": None}
    try:
        import torch

        result["torch"], result["cuda"] = torch.__version__, torch.version.cuda
        if not torch.cuda.is_available():
            result["error"] = (
                "this torch is a CPU build"
                if torch.version.cuda is None
                else "torch.cuda.is_available() is False: the driver is missing or older than torch's CUDA"
            )
        else:
            result["devices"] = [_check(torch, ordinal) for ordinal in range(torch.cuda.device_count())]
    except Exception as error:  # the child's whole purpose is to report what went wrong
        result["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(result))


def _check(torch: object, ordinal: int) -> dict[str, object]:
    properties = torch.cuda.get_device_properties(ordinal)  # type: ignore[attr-defined]
    uuid = getattr(properties, "uuid", None)
    error = None
    try:
        ones = torch.ones(64, 64, device=f"cuda:{ordinal}")  # type: ignore[attr-defined]
        if (ones @ ones)[0, 0].item() != 64.0:
            error = "a 64 x 64 product came out wrong"
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    return {"name": properties.name, "uuid": f"GPU-{uuid}" if uuid else None, "error": error}


if __name__ == "__main__":
    main()
