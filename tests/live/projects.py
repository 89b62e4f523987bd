"""Small projects for the real TorchServe, and the way a user runs servekit in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from servekit.domain.model import ImageOptions, ModelSpec, TensorOptions
from servekit.errors import HostError
from servekit.system import deployments, java, process
from servekit.verbs.package import How, package

REPO = Path(__file__).resolve().parents[2]

ECHO = """
import os

class Echo:
    def initialize(self, context):
        self.gpu = context.system_properties.get("gpu_id")

    def handle(self, data, context):
        mask, shared = (os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "PYTHONPATH"))
        return [{"gpu": self.gpu, "pid": os.getpid(), "mask": mask, "shared": shared} for _ in data]
"""
NET = "import torch\n\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(3, 2)\n"
TINY = (
    "import torch\n\nclass Tiny(torch.nn.Sequential):\n    def __init__(self):\n"
    "        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
)


def needs_java() -> pytest.MarkDecorator:
    try:
        java.find_java()
        java.torchserve_site()
    except HostError as error:
        return pytest.mark.skip(reason=error.message)
    return pytest.mark.skipif(False, reason="")


def pack_handler(project: Path, name: str, source: str, **more: object) -> None:
    """A user's handler without weights, with an example that any handler takes.

    Not proven: some of them fail on purpose, and would be refused.
    """
    project.mkdir(parents=True, exist_ok=True)
    (project / f"{name}_file.py").write_text(source)
    (project / "example.txt").write_text("hello")
    spec = ModelSpec(name=name, handler=f"{name}_file.py", examples=("example.txt",), **more)  # type: ignore[arg-type]
    package(spec, project, project / "model_store", lambda _: None, How(verify=False))


def pack_tensor(project: Path, name: str = "net") -> torch.nn.Module:
    project.mkdir(parents=True, exist_ok=True)
    model = torch.nn.Linear(3, 2)
    torch.save(model.state_dict(), project / "net.pt")
    (project / "net.py").write_text(NET)
    options = TensorOptions(input_shape=(3,))
    spec = ModelSpec(name=name, weights="net.pt", model="net.py:Net", handler="tensor", tensor=options)
    package(spec, project, project / "model_store", lambda _: None)
    return model


def pack_image(project: Path, name: str = "tiny") -> None:
    project.mkdir(parents=True, exist_ok=True)
    torch.save(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10)).state_dict(), project / "tiny.pt")
    (project / "tiny.py").write_text(TINY)
    options = ImageOptions(8, 8, 1, (0.5,), (0.5,), 3)
    spec = ModelSpec(name=name, weights="tiny.pt", model="tiny.py:Tiny", handler="image", image=options)
    package(spec, project, project / "model_store", lambda _: None)


def pack_workflow(war: Path, model: str) -> None:
    """A workflow around ``model`` of the store that TorchServe registers and runs wherever its store is open.

    It must be whole: an empty ``dag`` is refused for its own sake, and would prove nothing about the store.
    """
    workflow = {"workflowName": "flow", "specFile": "spec.yaml", "handler": "flow.py"}
    manifest = {"createdOn": "01/12/2026", "runtime": "python", "archiverVersion": "0.2.15", "workflow": workflow}
    limits = "  min-workers: 1\n  max-workers: 1\n  batch-size: 1\n  max-batch-delay: 50\n"
    with zipfile.ZipFile(war, "w") as out:
        out.writestr("WAR-INF/MANIFEST.json", json.dumps(manifest))
        out.writestr("spec.yaml", f"models:\n{limits}  inner:\n    url: {model}\ndag:\n  pre: [inner]\n")
        out.writestr("flow.py", "def pre(data, context):\n    return data\n")


def argv(*args: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "servekit", *args)


def environment(**more: str) -> dict[str, str]:
    inherited = {key: value for key, value in os.environ.items() if key != "SERVEKIT_DOCKER"}
    return {**inherited, "PYTHONPATH": str(REPO), **more}


def servekit(
    project: Path, *args: str, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv(*args), cwd=project, env=env or environment(), capture_output=True, text=True, timeout=timeout, check=False
    )


def nothing_left(project: Path, name: str = "default") -> None:
    """No process, no scratch folder with its sockets, no deployment folder."""
    host = deployments.host_paths(project, name)
    assert process.servers(host.home) == ()
    assert process._orphans(host.home) == []
    assert not host.scratch.exists()
    assert not host.home.exists()


def clear(project: Path) -> None:
    """For finalizers: whatever a failed test left."""
    for home in deployments.homes(project):
        process.stop(home)
        host = deployments.host_paths(project, home.name)
        shutil.rmtree(host.scratch, ignore_errors=True)
        shutil.rmtree(home, ignore_errors=True)
