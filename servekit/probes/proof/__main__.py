"""Import our own modules, then make them invisible: what the archive imports must come from the archive."""

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

# When servekit is killed outright, nobody waits for the answer any more.
with contextlib.suppress(AttributeError, OSError):
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

sys.path[0] = str(Path(__file__).resolve().parents[3])

from servekit.probes.proof import run  # noqa: E402

sys.path[0] = str(Path.cwd())
for name in [name for name in sys.modules if name.partition(".")[0] == "servekit"]:
    del sys.modules[name]
# Here servekit may be installed, in an image it is not: an archive must do without.
sys.modules["servekit"] = None  # type: ignore[assignment]

run.main()
# A user's module may have started threads: they must not keep this process alive.
os._exit(0)
