"""A deployment as a local process."""

from __future__ import annotations

from collections.abc import Mapping

from servekit.backends.files import deployment_files
from servekit.backends.java import Runtime, server_argv
from servekit.domain.deployment import Deployment
from servekit.domain.plan import MakeFolder, Plan, StartProcess


def up(deployment: Deployment, runtime: Runtime, environment: Mapping[str, str], python_path: str | None) -> Plan:
    """Files, then the frontend in a session of its own.

    ``environment`` is the caller's; ``python_path`` what may stay of PYTHONPATH, whose entries TorchServe
    puts before the archive.
    """
    paths = deployment.inside
    start = StartProcess(
        argv=server_argv(runtime, paths),
        cwd=paths.home,
        env=server_environment(deployment, environment, python_path),
        log=paths.home / "logs" / "console.log",
    )
    return Plan((*deployment_files(deployment), MakeFolder(paths.scratch, 0o700), start))


def server_environment(
    deployment: Deployment, environment: Mapping[str, str], python_path: str | None
) -> dict[str, str]:
    """The whole environment of the server and, by inheritance, of its workers."""
    env = {
        key: value
        for key, value in environment.items()
        # TorchServe's own variables would override the generated configuration.
        if not key.startswith("TS_") and key not in ("PYTHONPATH", "LANG", "LC_ALL", "LC_CTYPE")
    }
    if python_path:
        env["PYTHONPATH"] = python_path
    home, scratch = deployment.inside.home, str(deployment.inside.scratch)
    threads = str(min(model.threads for model in deployment.models))
    return env | {
        # Java and Python both take file names in the locale's encoding.
        "LC_ALL": "C.UTF-8",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": deployment.gpus.visible_devices,
        "TMPDIR": scratch,
        "TEMP": scratch,
        "LOG_LOCATION": f"{home}/logs",
        "METRICS_LOCATION": f"{home}/logs",
        "SERVEKIT_WORKER_REPORTS": f"{home}/workers",
        # Libraries read these before any handler can call torch.set_num_threads.
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONUNBUFFERED": "1",
        # The unpacked archive is shared: nobody writes byte code into it.
        "PYTHONDONTWRITEBYTECODE": "1",
    }
