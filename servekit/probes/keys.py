"""Which keys does a model's class expect? Run as a script with cwd = the folder of the model file::

{"file": "net.py", "class": "Net", "args": {...}, "paths": [folder of an extra file, ...]}
-> {"problem": str | null, "hint": str, "detail": str, "keys": [str]}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2])

from servekit.probes.proof import handler_file  # noqa: E402
from servekit.probes.proof.problem import ProofError  # noqa: E402


def main() -> None:
    request = json.load(sys.stdin)
    result: dict[str, Any] = {"problem": None, "hint": "", "detail": "", "keys": []}
    # Whatever user code prints must not end up in our one line of JSON.
    answer, sys.stdout = sys.stdout, sys.stderr
    sys.path[:1] = [str(Path.cwd()), *request["paths"]]
    sys.modules["servekit"] = None  # type: ignore[assignment]
    try:
        result["keys"] = list(handler_file.build(request).state_dict())
    except ProofError as problem:
        result |= {"problem": problem.message, "hint": problem.hint, "detail": problem.detail}
    print(json.dumps(result), file=answer, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
