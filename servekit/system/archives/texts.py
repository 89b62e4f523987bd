"""The texts in an archive that say what it is: manifest, model-config.yaml and our list of hashes.

Whoever made the archive wrote them: each has a size, a depth and, once its aliases are written out, a length
that it may not exceed. Every function raises BrokenError with a sentence about its member.
"""

from __future__ import annotations

import collections
import json
from collections.abc import Mapping
from typing import Any

import yaml

from servekit.system.archives.names import HASHES, MANIFEST, BrokenError, shown

LIMITS = {MANIFEST: 1024 * 1024, HASHES: 32 * 1024 * 1024}
"""In bytes; every other text has CONFIG_LIMIT."""
CONFIG_LIMIT = 256 * 1024
_MAX_DEPTH, _MAX_NODES = 32, 100_000
# What yaml's constructors let through for values that only look like numbers, dates or flags.
_NO_YAML = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, OverflowError)


def json_object(member: str, text: bytes) -> dict[str, Any]:
    """A JSON object without doubled keys, without NaN, not nested deep."""
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_no_doubles, parse_constant=_no_constant)
        json.dumps(value, ensure_ascii=False).encode()  # fails for half a surrogate pair, which cannot be written out
    except RecursionError:
        raise BrokenError(f"{member} is not JSON: it is nested too deep.") from None
    except ValueError as error:
        raise BrokenError(f"{member} is not JSON: {error}.") from error
    if not isinstance(value, dict):
        raise BrokenError(f"{member} is not a JSON object.")
    if _depth(value) > _MAX_DEPTH:
        raise BrokenError(f"{member} is nested more than {_MAX_DEPTH} deep.")
    return value


def yaml_mapping(member: str, text: bytes) -> dict[str, Any]:
    """A YAML mapping of plain values; {} for an empty text."""
    who = shown(member)[1:-1]
    try:
        loader = yaml.SafeLoader(text)
        try:
            node = loader.get_single_node()
            # Before anything is built of it: "<<" copies what it names, level by level.
            _measure(node, who, 0, {}, set())
            value = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except RecursionError:
        raise BrokenError(f"{who} is not YAML: it is nested too deep.") from None
    except _NO_YAML as error:
        raise BrokenError(f"{who} is not YAML: {error}.") from error
    if value is not None and not isinstance(value, dict):
        raise BrokenError(f"{who} is not a YAML mapping.")
    return value or {}


def listed_hashes(text: bytes, sizes: Mapping[str, int]) -> tuple[dict[str, str], list[str]]:
    """(member -> SHA-256, what differs from the members that are there with these ``sizes`` in bytes)."""
    members = json_object(HASHES, text).get("members")
    try:
        hashes = {member: str(entry["sha256"]) for member, entry in members.items()}  # type: ignore[union-attr]
        listed = {member: entry.get("size") for member, entry in members.items()}  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError) as error:
        raise BrokenError(f"{HASHES} lists no hashes.") from error
    there = sizes.keys() - {HASHES}
    surplus = [
        f"{shown_plain(name)} is not what was packaged: {HASHES} does not list it." for name in there - listed.keys()
    ]
    missing = [f"{shown_plain(name)} is missing: {HASHES} lists it." for name in listed.keys() - there]
    other = [
        f"{shown_plain(name)} is not what was packaged (it has {sizes[name]} bytes and had {listed[name]})."
        for name in there & listed.keys()
        if listed[name] not in (None, sizes[name])
    ]
    return hashes, sorted(surplus + missing + other)


def shown_plain(name: str) -> str:
    """A name without quotes, escaped so that it stays on its line."""
    return shown(name)[1:-1] if len(name) <= 100 else shown(name)


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        times = collections.Counter(key for key, _ in pairs)
        double = next(key for key, count in times.items() if count > 1)
        raise ValueError(f"the key {shown(double)} is there twice")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return depth


def _measure(
    node: yaml.Node | None, who: str, depth: int, known: dict[int, tuple[int, int]], above: set[int]
) -> tuple[int, int]:
    """(values, levels) of ``node`` with every alias written out."""
    if id(node) in above:
        raise BrokenError(f"{who} holds an alias that contains itself.")
    count = levels = 1
    if id(node) in known:
        count, levels = known[id(node)]
    elif isinstance(node, yaml.CollectionNode) and depth <= _MAX_DEPTH:
        above.add(id(node))
        for child in node.value:
            for inner in child if isinstance(child, tuple) else (child,):
                more, deep = _measure(inner, who, depth + 1, known, above)
                count, levels = count + more, max(levels, deep + 1)
                if count > _MAX_NODES:
                    raise BrokenError(f"{who} holds more than {_MAX_NODES} values once its aliases are written out.")
        above.discard(id(node))
    if depth + levels > _MAX_DEPTH:
        raise BrokenError(f"{who} is nested more than {_MAX_DEPTH} deep.")
    known[id(node)] = count, levels
    return count, levels
