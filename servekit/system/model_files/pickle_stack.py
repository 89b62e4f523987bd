"""The stack, the marks and the memo of a pickle that is followed, and all that may be done with them.

A subclass of ``pickle.Unpickler`` would be shorter, but the interpreter's own one takes extension codes from a
cache without asking, reserves memory for any memo number it is told, sets attributes on whatever stands on the
stack, and hashes what the file likes. Here all of that is data.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from servekit.system.model_files import pickle_globals
from servekit.system.model_files.pickle_globals import REFUSED
from servekit.system.model_files.pickle_opcodes import Source
from servekit.system.model_files.pickle_values import (
    Built,
    Malformed,
    Opaque,
    Ordered,
    Storage,
    Symbol,
    Tensor,
    key,
    number,
)
from servekit.system.model_files.torch_dtypes import STORAGES

MAX_STEPS = 8_000_000
MAX_SECONDS = 120.0
_BETWEEN_LOOKS = 1024


@dataclass(frozen=True)
class Refused:
    """A global outside the list, or another way to one; ``offset`` in bytes from the pickle's start."""

    name: str
    offset: int


class Stack:
    """What the opcodes work on. ``at``: where the one stands that is being followed."""

    def __init__(self, source: Source, script: bool, numbered: bool) -> None:
        self.source = source
        self.script = script
        self.numbered = numbered
        self.stack: list[Any] = []
        self.marks: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.refused: dict[str, int] = {}
        self.storages: dict[str, Storage] = {}
        self.at = source.position
        self.steps = 0
        self.next_look = _BETWEEN_LOOKS
        self.deadline = time.monotonic() + MAX_SECONDS

    def spend(self, steps: int) -> None:
        """Work is counted, so that a small file cannot ask for much of it."""
        self.steps += steps
        if self.steps > MAX_STEPS:
            raise Malformed(f"it takes more than {MAX_STEPS} steps", self.at)
        if self.steps >= self.next_look:
            self.next_look = self.steps + _BETWEEN_LOOKS
            if time.monotonic() > self.deadline:
                raise Malformed(f"it takes longer than {MAX_SECONDS:.0f} s", self.at)

    def need(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def popped(self, count: int) -> list[Any]:
        self.need(count)
        items = self.stack[-count:]
        del self.stack[-count:]
        return items

    def pop_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.marks.pop()
        self.spend(len(items))
        return items

    def refuse(self, name: str) -> Built:
        self.refused.setdefault(name, self.at)
        return Built(name)

    def refusals(self, start: int) -> tuple[Refused, ...]:
        return tuple(Refused(name, at - start) for name, at in self.refused.items())

    def symbol(self, module: str, name: str) -> Symbol:
        found = pickle_globals.symbol(module, name, script=self.script)
        if found.kind == REFUSED:
            self.refuse(found.name)
        return found

    def call(self, function: Any, args: Any) -> Any:
        if isinstance(function, Built):  # refused already, or made by what is
            return self.refuse(function.of) if function.of in self.refused else function
        if not isinstance(function, Symbol) or not isinstance(args, tuple):
            raise Malformed("it calls something that is no function", self.at)
        if function.kind == "ordered":
            return self.ordered(args)
        return pickle_globals.call(function, args, self.at)

    def ordered(self, args: tuple[Any, ...]) -> Ordered:
        made, given = Ordered(), args[-1] if args else ()
        if isinstance(given, dict):
            given = list(given.items())
        if isinstance(given, list):
            self.spend(len(given))
            for pair in given:
                if not isinstance(pair, (list, tuple)) or len(pair) != 2:
                    raise Malformed("an OrderedDict is made of something that is no pair", self.at)
                made[key(pair[0], self.at)] = pair[1]
        return made

    def put_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if len(items) % 2:
            raise Malformed("a dict is given a key without a value", self.at)
        if isinstance(target, Built):  # a subclass of dict
            return
        if not isinstance(target, dict):
            raise Malformed("it puts a key into something that is no dict", self.at)
        for place in range(0, len(items), 2):
            self.spend(1)
            target[key(items[place], self.at)] = items[place + 1]

    def append_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, (Built, Opaque)):  # a subclass of list; a set, whose members nobody needs
            return
        if not isinstance(target, list):
            raise Malformed("it appends to something that is no list", self.at)
        target.extend(items)

    def build(self, _: None) -> None:
        (state,) = self.popped(1)
        target = self.stack[-1]
        if isinstance(target, Built):
            target.state = state
        elif isinstance(target, Tensor):
            target.odd = target.odd or "carries a state of its own"
        elif not isinstance(target, Ordered):
            raise Malformed("it sets attributes of something that has none", self.at)

    def persistent(self, identity: Any) -> Any:
        if self.numbered and isinstance(identity, (int, str)):
            return Opaque("tensor")
        kind = identity[0] if isinstance(identity, tuple) and identity else None
        if kind == "module" and len(identity) == 4:  # a class, with its source, in files before torch 1.6
            return identity[1]
        if kind != "storage" or len(identity) not in (5, 6):
            raise Malformed("it has a persistent id that is no storage", self.at)
        of, name, location, size = identity[1:5]
        if not isinstance(of, Symbol) or of.kind not in ("storage", REFUSED):
            raise Malformed("a storage has a class that is none", self.at)
        if not isinstance(name, str) or not isinstance(location, str):
            raise Malformed("a storage has a name or a place that is no text", self.at)
        start, size = 0, number(size, self.at)
        if len(identity) == 6 and identity[5] is not None:
            view = identity[5]
            if not isinstance(view, tuple) or len(view) != 3:
                raise Malformed("a storage has a view that cannot be read", self.at)
            start = number(view[1], self.at)
        made = Storage(STORAGES.get(of.name.rpartition(".")[2]), name, location, size, start)
        self.storages.setdefault(name, made)
        return made
