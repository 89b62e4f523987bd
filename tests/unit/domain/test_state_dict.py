"""Prefixes, and whether names fit."""

from __future__ import annotations

import pytest

from servekit.domain import state_dict
from servekit.domain.state_dict import Fit


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["module.a", "module.b.c"], "module."),
        (["_orig_mod.a"], "_orig_mod."),
        (["module._orig_mod.a", "module._orig_mod.b"], "module._orig_mod."),
        (["module._orig_mod.a", "module.b"], "module."),
        (["model.a", "model.b"], "model."),
        (["module.a", "b"], None),
        (["modulea"], None),
        (["module."], None),
        (["backbone.a"], None),
        ([], None),
    ],
)
def test_prefix(keys: list[str], expected: str | None) -> None:
    assert state_dict.prefix(keys) == expected


def test_equal_names_need_nothing() -> None:
    assert state_dict.fit(["a", "b"], ["b", "a"]) == Fit()


@pytest.mark.parametrize("prefix", state_dict.PREFIXES)
def test_a_prefix_is_taken_off(prefix: str) -> None:
    found = state_dict.fit([f"{prefix}a", f"{prefix}b.c"], ["b.c", "a"])
    assert found.rename == {f"{prefix}a": "a", f"{prefix}b.c": "b.c"}
    assert found.note == f"The prefix {prefix!r} was taken off all 2 names."
    assert found.problem is None


def test_a_prefix_that_belongs_to_the_model_stays() -> None:
    assert state_dict.fit(["model.a"], ["model.a"]) == Fit()
    found = state_dict.fit(["module._orig_mod.a"], ["_orig_mod.a"])
    assert found.rename == {"module._orig_mod.a": "_orig_mod.a"}


def test_names_that_do_not_fit_are_told_as_torch_tells_them() -> None:
    found = state_dict.fit(["module.a", "module.x"], ["a", "b"])
    assert found.problem == (
        'Missing key(s) in state_dict: "a", "b". Unexpected key(s) in state_dict: "module.a", "module.x".'
    )
    assert not found.rename
    assert found.note is None
    only_missing = state_dict.fit(["a"], ["a", *(f"l{number}" for number in range(7))])
    assert only_missing.problem == 'Missing key(s) in state_dict: "l0", "l1", "l2", "l3", "l4" and 2 more.'
    assert state_dict.fit(["a", "z"], ["a"]).problem == 'Unexpected key(s) in state_dict: "z".'


def test_sizes_of_elements() -> None:
    sizes = {code: state_dict.item_size(code) for code in state_dict.SAFETENSORS_CODES.values()}
    assert {code for code, size in sizes.items() if size == 8} == {"F64", "I64", "U64", "C64"}
    assert {code for code, size in sizes.items() if size == 4} == {"F32", "I32", "U32"}
    assert {code for code, size in sizes.items() if size == 2} == {"F16", "BF16", "I16", "U16"}
    assert sum(size == 1 for size in sizes.values()) == 7
