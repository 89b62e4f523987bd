"""Each trap with its examples in traps/: NAME-true.txt has traps on the lines that say HERE, NAME-false.txt none."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.domain import traps

FOLDER = Path(__file__).parent / "traps"
CODES = ("first-item-only", "hard-coded-device", "access-at-import", "heavy-work-at-import", "hand-written-activation")


def examples(code: str, kind: str) -> list[str]:
    return (FOLDER / f"{code}-{kind}.txt").read_text().split("# ---\n")


TRUE = [(code, source) for code in CODES for source in examples(code, "true")]
FALSE = [(code, source) for code in CODES for source in examples(code, "false")]


@pytest.mark.parametrize(("code", "source"), TRUE)
def test_a_trap_is_found_on_its_line(code: str, source: str) -> None:
    wanted = {number for number, line in enumerate(source.splitlines(), start=1) if line.endswith("# HERE")}
    found = [trap for trap in traps.find(source, "h.py") if trap.code == code]
    assert {trap.line for trap in found} == wanted
    assert all(trap.message.endswith(".") and trap.hint.endswith(".") for trap in found)


@pytest.mark.parametrize(("code", "source"), FALSE)
def test_what_is_no_trap(code: str, source: str) -> None:
    assert [trap for trap in traps.find(source, "h.py") if trap.code == code] == []


def test_at_least_twenty_of_each_and_all_are_python() -> None:
    for code in CODES:
        for kind in ("true", "false"):
            sources = examples(code, kind)
            assert len(set(sources)) >= 20, (code, kind)
            for source in sources:
                ast.parse(source)


def test_what_does_not_parse_has_no_traps() -> None:
    assert traps.find("def broken(:", "h.py") == ()
    assert traps.find("x = 1\0", "h.py") == ()
    assert traps.find("x = " + "(" * 500 + ")" * 500, "h.py") == ()
    assert traps.find("x = " + "-" * 3000 + "1", "h.py") == ()


def test_our_own_handlers_have_none() -> None:
    root = Path(__file__).parents[3] / "handlers"
    for path in root.rglob("*.py"):
        assert traps.find(path.read_text(), path.name) == (), path


WORDS = re.findall(r"\w+|[^\w\s]|\n *", "".join(source for _, source in (*TRUE, *FALSE)))


@given(st.lists(st.sampled_from(WORDS), max_size=40))
def test_any_words_in_any_order_raise_nothing(words: list[str]) -> None:
    traps.find(" ".join(words), "h.py")


@given(st.sampled_from(TRUE), st.integers(0, 400), st.sampled_from(WORDS))
def test_a_changed_example_raises_nothing(example: tuple[str, str], place: int, word: str) -> None:
    source = example[1]
    traps.find(source[:place] + word + source[place:], "h.py")
