"""Locked requirements: exact versions with the hashes of their files, for one Python and platform."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

SCHEMA = 1
_HEAD = "# servekit requirements lock, schema {schema}: python {python}, platform {platform}"
_HEAD_LINE = re.compile(r"# servekit requirements lock, schema (\d+): python (\S+), platform (\S+)")
_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_PACKAGE = re.compile(rf"({_NAME})==([A-Za-z0-9.!+_-]+)")
_HASH = re.compile(r"--hash=(sha256:[0-9a-f]{64})")


@dataclass(frozen=True)
class Locked:
    """One package: its normalised name, its version, and ``sha256:...`` of every file that may be installed."""

    name: str
    version: str
    hashes: tuple[str, ...]


@dataclass(frozen=True)
class Lock:
    """``python`` is X.Y, ``platform`` a name of uv's such as ``x86_64-manylinux_2_28``."""

    python: str
    platform: str
    packages: tuple[Locked, ...]


def normalised(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def render(lock: Lock) -> str:
    """The text of requirements.lock, which ``pip install --require-hashes -r`` takes; always the same."""
    lines = [_HEAD.format(schema=SCHEMA, python=lock.python, platform=lock.platform)]
    for package in sorted(lock.packages, key=lambda package: package.name):
        hashes = "".join(f" \\\n    --hash={digest}" for digest in sorted(package.hashes))
        lines.append(f"{package.name}=={package.version}{hashes}")
    return "\n".join(lines) + "\n"


def parse(text: str) -> Lock:
    """Read ``render``'s text back. ValueError, with the line, for anything else."""
    head, _, rest = text.partition("\n")
    found = _HEAD_LINE.fullmatch(head)
    if not found:
        raise ValueError("line 1 is not the head of a servekit lock")
    if int(found[1]) != SCHEMA:
        raise ValueError(f"its schema is {found[1]}; this servekit reads {SCHEMA}")
    return Lock(found[2], found[3], packages(rest, first_line=2))


def packages(text: str, first_line: int = 1) -> tuple[Locked, ...]:
    """The packages of a text with ``name==version`` and its hashes behind; comments and markers of uv's are
    skipped. ValueError for a line that is neither, and for a package without a hash or named twice."""
    found: dict[str, Locked] = {}
    for number, line in _logical_lines(text, first_line):
        words = line.split()
        package = _PACKAGE.fullmatch(words[0])
        hashes = [_HASH.fullmatch(word) for word in words[1:] if word.startswith("--")]
        if not package or not all(hashes):
            raise ValueError(f"line {number} is not NAME==VERSION with hashes: {line[:80]!r}")
        if not hashes:
            raise ValueError(f"line {number}: {words[0]} has no hash")
        name = normalised(package[1])
        if name in found:
            raise ValueError(f"line {number}: {name} is there twice")
        found[name] = Locked(name, package[2], tuple(sorted({h[1] for h in hashes if h})))
    return tuple(sorted(found.values(), key=lambda one: one.name))


def differences(lock: Lock, installed: Mapping[str, str]) -> tuple[str, ...]:
    """What an environment (normalised name -> version) has otherwise; an empty tuple when it is the locked one.

    A local label (``2.13.0+cu130``) tells how a version was built, not which it is: it counts only when the
    lock names one, as PEP 440 compares.
    """
    found = []
    for package in lock.packages:
        version = installed.get(package.name)
        if version is None:
            found.append(f"{package.name} {package.version} is locked, and not installed.")
        elif not _same(package.version, version):
            found.append(f"{package.name} {package.version} is locked, and {version} is installed.")
    return tuple(found)


def _same(locked: str, installed: str) -> bool:
    return locked == (installed if "+" in locked else installed.partition("+")[0])


def _logical_lines(text: str, first_line: int) -> list[tuple[int, str]]:
    """(number of its first line, text) of every line that is no comment, continued ones joined."""
    lines: list[tuple[int, str]] = []
    begun: tuple[int, str] | None = None
    for number, raw in enumerate(text.splitlines(), start=first_line):
        line = raw.strip()
        if begun is None and (not line or line.startswith("#")):
            continue
        start, before = begun or (number, "")
        joined = f"{before} {line.removesuffix(chr(92)).strip()}".strip()
        begun = (start, joined)
        if not line.endswith("\\"):
            lines.append(begun)
            begun = None
    return [*lines, begun] if begun else lines
