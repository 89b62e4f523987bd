"""What ``up`` insists on before it serves: signatures where they are asked for, and the locked requirements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from servekit.domain import lock as nouns
from servekit.errors import HostError, ModelError, raise_together
from servekit.system.archives import archive
from servekit.system.archives.archive import ArchiveInfo
from servekit.system.proofs import proof_file
from servekit.system.trust import lock, signing
from servekit.verbs import collect

_MAX_LOCK = 16 * 1024 * 1024


def check(infos: Sequence[ArchiveInfo], public_key: Path | None, runtime: str) -> None:
    """Raise ModelError for the unsigned and the altered, HostError for an environment that is not the locked one.

    In a container the image decides: `servekit build` installs there, and nothing is installed while serving.
    """
    problems: list[str] = []
    for info in infos if public_key else ():
        path = proof_file.path_of(info.path)
        try:
            signing.check(info.path, info.sha256, path.read_bytes() if path.exists() else None, Path(str(public_key)))
        except ModelError as error:
            problems.append(error.message)
    raise_together(ModelError, problems, hint="--require-signature serves only what this key signed.")
    if runtime == "local":
        _check_locks(infos)


def _check_locks(infos: Sequence[ArchiveInfo]) -> None:
    problems: list[str] = []
    for info in infos:
        if collect.LOCK not in info.members:
            continue
        locked = lock.parse(archive.read_member(info, collect.LOCK, _MAX_LOCK).decode())
        problems += [f"{info.name}: {difference}" for difference in nouns.differences(locked, lock.installed())]
    raise_together(
        HostError,
        problems,
        hint="Install the locked versions where the server runs: unzip -p NAME.mar requirements.lock > r.lock && "
        "pip install --require-hashes -r r.lock",
    )
