"""Follow a pickle without obeying it: every opcode does to a stack what it would do, and calls nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from servekit.system.model_files.pickle_globals import REFUSED
from servekit.system.model_files.pickle_opcodes import Source, read
from servekit.system.model_files.pickle_stack import Refused, Stack
from servekit.system.model_files.pickle_values import Malformed, Opaque, Storage, Symbol, number

MAX_BYTES = 256 * 1024 * 1024
"""The largest pickle that is followed. A checkpoint's own is far below a megabyte a thousand tensors."""


@dataclass(frozen=True)
class Result:
    """``value`` is inert. ``end``: where the next byte after STOP is. ``error``: why it could not be followed.

    ``storages``: every one that was mentioned, by its key, as at its first mention.
    """

    value: Any
    refused: tuple[Refused, ...]
    end: int
    error: Malformed | None = None
    storages: Mapping[str, Storage] = field(default_factory=dict)


def follow(data: bytes, start: int = 0, *, script: bool = False, numbered: bool = False) -> Result:
    """One pickle from ``start``. Never raises for what the bytes hold; ``error`` and ``refused`` tell.

    ``script``: part of a TorchScript archive. ``numbered``: persistent ids are numbers of tensors, as in the
    tar files of torch 0.1.
    """
    machine = Stack(Source(data, start), script, numbered)
    try:
        _run(machine)
    except Malformed as error:
        _look_through_the_rest(machine)
        error.offset -= start
        return Result(None, machine.refusals(start), machine.source.position, error)
    return Result(machine.stack[-1], machine.refusals(start), machine.source.position, None, machine.storages)


def _run(machine: Stack) -> None:
    while True:
        machine.at = machine.source.position
        opcode, argument = read(machine.source)
        machine.spend(1)
        try:
            if opcode == _STOP:
                machine.need(1)
                return
            _ACTIONS[opcode](machine, argument)
        except IndexError as error:
            raise Malformed("it takes more from its stack than is there", machine.at) from error
        except KeyError as error:
            raise Malformed("it asks for something that it never put into its memo", machine.at) from error


def _look_through_the_rest(machine: Stack) -> None:
    """Names that come after the place where we could not go on: to tell them all at once.

    Without a stack, a name that is put together is only known to be one.
    """
    try:
        while True:
            machine.at = machine.source.position
            opcode, argument = read(machine.source)
            machine.spend(1)
            if opcode == _STOP:
                return
            if opcode in (ord("c"), ord("i")):
                machine.symbol(*argument)
            elif opcode == 0x93:
                machine.refuse("a name that is put together (STACK_GLOBAL)")
            elif opcode in (0x82, 0x83, 0x84):
                machine.refuse(f"copyreg extension code {argument}")
    except Malformed:
        return


_STOP = ord(".")
_Action = Callable[[Stack, Any], None]


def _push(machine: Stack, argument: Any) -> None:
    machine.push(argument)


def _constant(value: Any) -> _Action:
    return lambda machine, _: machine.push(value)


def _nothing(machine: Stack, _: Any) -> None:
    pass


def _proto(machine: Stack, version: int) -> None:
    if version > 5:
        raise Malformed(f"there is no pickle protocol {version}", machine.at)


def _mark(machine: Stack, _: None) -> None:
    machine.marks.append(machine.stack)
    machine.stack = []


def _pop(machine: Stack, _: None) -> None:
    if machine.stack:
        machine.stack.pop()
    else:
        machine.pop_mark()


def _pop_to_mark(machine: Stack, _: None) -> None:
    machine.pop_mark()


def _tuple_of(count: int) -> _Action:
    return lambda machine, _: machine.push(tuple(machine.popped(count)))


def _dict(machine: Stack, _: None) -> None:
    items = machine.pop_mark()
    machine.push({})
    machine.put_items(items)


def _frozenset(machine: Stack, _: None) -> None:
    machine.pop_mark()
    machine.push(Opaque("frozenset"))


def _stack_global(machine: Stack, _: None) -> None:
    module, name = machine.popped(2)
    if type(module) is not str or type(name) is not str:
        machine.push(machine.refuse("a name that is put together (STACK_GLOBAL)"))
    else:
        machine.push(machine.symbol(module, name))


def _inst(machine: Stack, name: tuple[str, str]) -> None:
    found = machine.symbol(*name)  # before the mark: the name is imported even if there is none
    machine.push(machine.call(found, tuple(machine.pop_mark())))


def _obj(machine: Stack, _: None) -> None:
    items = machine.pop_mark()
    machine.push(machine.call(items[0], tuple(items[1:])))


def _reduce(machine: Stack, _: None) -> None:
    function, args = machine.popped(2)
    machine.push(machine.call(function, args))


def _newobj_ex(machine: Stack, _: None) -> None:
    function, args, keywords = machine.popped(3)
    if not isinstance(keywords, dict):
        raise Malformed("it gives keywords that are no dict", machine.at)
    if keywords and isinstance(function, Symbol) and function.kind != REFUSED:
        raise Malformed(f"it gives keywords to {function.name}, which no checkpoint does", machine.at)
    machine.push(machine.call(function, args))


def _setitem(machine: Stack, _: None) -> None:
    machine.put_items(machine.popped(2))


def _extension(machine: Stack, code: int) -> None:
    machine.push(machine.refuse(f"copyreg extension code {code}"))


def _persid(machine: Stack, identity: str) -> None:
    machine.push(machine.persistent(identity))


def _memoize(machine: Stack, _: None) -> None:
    machine.memo[len(machine.memo)] = machine.stack[-1]


def _put(machine: Stack, place: int) -> None:
    machine.memo[number(place, machine.at)] = machine.stack[-1]


def _out_of_band(machine: Stack, _: None) -> None:
    raise Malformed("it wants a buffer from outside the file", machine.at)


_ACTIONS: Mapping[int, _Action] = {
    **{ord(code): _push for code in "ILFSVJKMGTUBCX\x8a\x8b\x8c\x8d\x8e"},
    **{ord(code): _nothing for code in "\x95"},
    **{ord(code): _put for code in "pqr"},
    **{ord(code): _extension for code in "\x82\x83\x84"},
    ord("\x96"): lambda machine, _: machine.push(Opaque("bytearray")),
    ord("\x80"): _proto,
    ord("N"): _constant(None),
    ord("\x88"): _constant(True),
    ord("\x89"): _constant(False),
    ord(")"): _constant(()),
    ord("]"): lambda machine, _: machine.push([]),
    ord("}"): lambda machine, _: machine.push({}),
    ord("\x8f"): lambda machine, _: machine.push(Opaque("set")),
    ord("("): _mark,
    ord("0"): _pop,
    ord("1"): _pop_to_mark,
    ord("2"): lambda machine, _: machine.push(machine.stack[-1]),
    ord("t"): lambda machine, _: machine.push(tuple(machine.pop_mark())),
    ord("l"): lambda machine, _: machine.push(machine.pop_mark()),
    ord("d"): _dict,
    ord("\x85"): _tuple_of(1),
    ord("\x86"): _tuple_of(2),
    ord("\x87"): _tuple_of(3),
    ord("\x91"): _frozenset,
    ord("a"): lambda machine, _: machine.append_items(machine.popped(1)),
    ord("e"): lambda machine, _: machine.append_items(machine.pop_mark()),
    ord("\x90"): lambda machine, _: machine.append_items(machine.pop_mark()),
    ord("s"): _setitem,
    ord("u"): lambda machine, _: machine.put_items(machine.pop_mark()),
    ord("c"): lambda machine, name: machine.push(machine.symbol(*name)),
    ord("\x93"): _stack_global,
    ord("i"): _inst,
    ord("o"): _obj,
    ord("R"): _reduce,
    ord("\x81"): _reduce,
    ord("\x92"): _newobj_ex,
    ord("b"): Stack.build,
    ord("P"): _persid,
    ord("Q"): lambda machine, _: machine.push(machine.persistent(machine.stack.pop())),
    ord("g"): lambda machine, place: machine.push(machine.memo[place]),
    ord("h"): lambda machine, place: machine.push(machine.memo[place]),
    ord("j"): lambda machine, place: machine.push(machine.memo[place]),
    ord("\x94"): _memoize,
    ord("\x97"): _out_of_band,
    ord("\x98"): _nothing,
}
