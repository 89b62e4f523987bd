"""A strict reader of one YAML mapping: every problem is collected, none is guessed away."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

_MISSING: Any = object()


class Section:
    """The mapping found at ``where``. Readers take a key each; ``close`` reports the keys nobody took.

    A reader given a default returns it when the key is absent or null. On a wrong value it appends to
    ``problems`` and returns None (or the default), so that reading goes on and all problems are seen.
    """

    def __init__(self, values: Any, where: str, problems: list[str]) -> None:
        self.where = where
        self.problems = problems
        self._taken: list[str] = []
        self._values: Mapping[str, Any] = values if isinstance(values, Mapping) else {}
        if not isinstance(values, Mapping):
            problems.append(f"{where} must be a mapping, not {_name(values)}.")

    def has(self, key: str) -> bool:
        return self._values.get(key) is not None

    def text(self, key: str, default: Any = _MISSING) -> Any:
        return self._read(key, default, "a non-empty text", lambda v: isinstance(v, str) and bool(v))

    def choice(self, key: str, choices: Sequence[str], default: Any = _MISSING) -> Any:
        return self._read(key, default, f"one of {', '.join(choices)}", lambda v: v in choices)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._read(key, default, "true or false", lambda v: isinstance(v, bool))
        return bool(value)

    def whole(self, key: str, default: Any = _MISSING) -> Any:
        """A whole number of at least 1."""
        return self._read(key, default, "a whole number of at least 1", lambda v: _whole(v, 1))

    def numbers(self, key: str, default: Any = _MISSING) -> Any:
        """A list of numbers, as a tuple of floats."""
        value = self._read(key, default, "a list of numbers", lambda v: _listed(v, _number))
        return tuple(float(v) for v in value) if value else value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of non-empty texts; empty when absent."""
        value = self._read(
            key, None, "a list of texts", lambda v: isinstance(v, list) and all(isinstance(x, str) and x for x in v)
        )
        return tuple(value or ())

    def shape(self, key: str, default: Any = _MISSING) -> Any:
        """A list of sizes of at least 1, as a tuple; an empty list is the shape of one number."""
        value = self._read(key, default, "a list of whole numbers of at least 1", lambda v: _sizes(v))
        return tuple(value) if value is not None else None

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping with text keys; empty when absent."""
        value = self._read(
            key,
            None,
            "a mapping with text keys",
            lambda v: isinstance(v, Mapping) and all(isinstance(k, str) for k in v),
        )
        return dict(value or {})

    def section(self, key: str) -> Section | None:
        """The mapping below ``key``; None when absent."""
        self._taken.append(key)
        if not self.has(key):
            return None
        return Section(self._values[key], f"{self.where}.{key}", self.problems)

    def close(self) -> None:
        """Report every key that no reader asked for."""
        for key in self._values:
            if key not in self._taken:
                near = difflib.get_close_matches(str(key), self._taken, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(self._taken))}."
                self.problems.append(f"{self.where}.{key} is an unknown key; {hint}")

    def _read(self, key: str, default: Any, wanted: str, fits: Any) -> Any:
        self._taken.append(key)
        value = self._values.get(key)
        if value is None:
            if default is not _MISSING:
                return default
            self.problems.append(f"{self.where}.{key} is missing; it must be {wanted}.")
            return None
        if fits(value):
            return value
        self.problems.append(f"{self.where}.{key} is {value!r}; it must be {wanted}.")
        return None if default is _MISSING else default


def _whole(value: Any, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _listed(value: Any, fits: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(fits(v) for v in value)


def _sizes(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(_whole(v, 1) for v in value)


def _name(value: Any) -> str:
    return "empty" if value is None else f"{type(value).__name__} {value!r}"
