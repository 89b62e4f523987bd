"""Every file of an archive at its place: what the worker will see as its working folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servekit import assets
from servekit.domain import traps
from servekit.domain.lock import Lock
from servekit.domain.model import ModelSpec, TextOptions
from servekit.errors import ModelError
from servekit.render.manifest import manifest
from servekit.render.model_config import Placed, model_config, to_yaml
from servekit.system import labels
from servekit.system.archives import archive
from servekit.system.archives.members import Members
from servekit.system.trust import lock, sbom, wheels
from servekit.verbs.intake import Intake

if TYPE_CHECKING:
    from servekit.verbs.package import How

CONFIG = "model-config.yaml"
LABELS = "index_to_name.json"
LOCK = "requirements.lock"
SBOM = "MAR-INF/sbom.cdx.json"
CARD = "model-card.md"
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Collected:
    """The members, and what else is known of them. ``facts`` go into MAR-INF/servekit.json."""

    members: Members
    handler: str
    config: Mapping[str, Any]
    examples: tuple[str, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
    lock: Lock | None = None


def collect(spec: ModelSpec, folder: Path, taken: Intake | None, how: How, progress: Progress) -> Collected:
    """Gather what ``spec`` names, relative to ``folder``, and render the rest. ``members.check()`` judges it."""
    members = Members()
    runtime = assets.handlers()
    members.add_tree(runtime / "servekit_worker", "servekit_worker", "the runtime")
    handler = handler_file(spec)
    users = [] if spec.builtin_handler else [(handler, folder / spec.handler)]
    members.add(handler, runtime / handler if spec.builtin_handler else folder / spec.handler, "handler")
    for place, source in (taken.files if taken else {}).items():
        members.add(place, source, "weights")
    users += _extra_files(spec, folder, members)
    model_file = _model_file(spec, folder, members, users)
    labels_file = None
    if spec.labels:
        text = json.dumps(labels.read(folder / spec.labels), indent=2, ensure_ascii=False) + "\n"
        labels_file = members.add(LABELS, text.encode(), "labels")
    examples = tuple(members.add(f"example/{path.name}", path, "example") for path in _examples(spec, folder))
    if spec.card:
        members.add(CARD, folder / spec.card, "card")
    locked = _requirements(spec, folder, members, how, progress)
    placed = Placed(
        taken.weights if taken else None, taken.format if taken else None, model_file, labels_file, examples
    )
    if taken and taken.text:
        spec = dataclasses.replace(spec, text=TextOptions(**{**dataclasses.asdict(spec.text), **taken.text}))
    config = model_config(spec, placed)
    members.add(CONFIG, to_yaml(config).encode(), "configuration")
    text = manifest(
        name=spec.name,
        version=spec.version,
        handler=handler,
        serialized_file=taken.weights if taken and taken.format != "huggingface" else None,
        model_file=model_file,
        config_file=CONFIG,
    )
    members.add(archive.MANIFEST, text.encode(), "manifest")
    for place, path in users:
        _hint(spec, place, path, progress)
    facts: dict[str, Any] = {}
    if taken:
        facts["weights"] = {"format": taken.format, **taken.facts}
    if spec.meta:
        facts["meta"] = dict(sorted(spec.meta.items()))
    return Collected(members, handler, config, examples, facts, locked)


def handler_file(spec: ModelSpec) -> str:
    """The handler's file name inside the archive."""
    return f"{spec.handler}_handler.py" if spec.builtin_handler else Path(spec.handler).name


def vendor(collected: Collected, target: Path, progress: Progress) -> tuple[Path, ...]:
    """Fetch the wheels of the lock into ``NAME.wheels/`` beside the archive."""
    assert collected.lock is not None, "--vendor-wheels without --requirements was refused"
    return wheels.fetch(collected.lock, target.with_name(f"{target.stem}.wheels"), progress)


def _extra_files(spec: ModelSpec, folder: Path, members: Members) -> list[tuple[str, Path]]:
    """Add them; the Python files among them, by place."""
    before = set(members.files)
    for extra in spec.extra_files:
        path = folder / extra
        if path.is_dir():
            members.add_tree(path, path.resolve().name, "extra file")
        else:
            members.add(path.name, path, "extra file")
    added = ((place, source) for place, source in members.files.items() if place not in before)
    return [(place, source) for place, source in added if place.endswith(".py") and isinstance(source, Path)]


def _model_file(spec: ModelSpec, folder: Path, members: Members, users: list[tuple[str, Path]]) -> str | None:
    """The model file's place: inside its package where that travels along, else at the root."""
    if not spec.model_file:
        return None
    path = folder / spec.model_file
    for place, source in users:
        if "/" in place and path.exists() and source.resolve() == path.resolve():
            return place
    users.append((path.name, path))
    return members.add(path.name, path, "model file")


def _examples(spec: ModelSpec, folder: Path) -> list[Path]:
    """Files as they are said; the files of a folder, sorted."""
    found: list[Path] = []
    for example in spec.examples:
        path = folder / example
        inside = (
            sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith(".")) if path.is_dir() else [path]
        )
        if not inside:
            raise ModelError(f"example: {path} is an empty folder.")
        found += inside
    return found


def _requirements(spec: ModelSpec, folder: Path, members: Members, how: How, progress: Progress) -> Lock | None:
    if not spec.requirements:
        return None
    progress(f"{spec.name}: resolving {spec.requirements} into a lock with hashes ...")
    locked = lock.resolve(folder / spec.requirements, how.python, how.platform)
    members.add(LOCK, lock.render(locked).encode(), "requirements")
    members.add(SBOM, sbom.render(locked, spec.name, spec.version), "requirements")
    return locked


def _hint(spec: ModelSpec, place: str, path: Path, progress: Progress) -> None:
    """Known traps in the user's own code: told, not refused."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return  # members.check() and the proof say what is wrong with it
    for trap in traps.find(source, place):
        progress(f"{spec.name}: {place}:{trap.line}: {trap.message} {trap.hint} [{trap.code}]")
