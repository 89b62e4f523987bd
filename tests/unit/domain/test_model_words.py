from __future__ import annotations

import pytest

from servekit.domain.model import ModelSpec, name_problem, precision_problem, version_problem


@pytest.mark.parametrize("name", ["a", "7", "digits", "a.b-c_d", "mytoken", "x" * 128])
def test_names_that_survive(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(
    "name",
    ["a/b", "../a", "a b", "-a", ".a", "_a", "a\n", "a%2Fb", "a?b", "a=b", "a,b", "ü", "模型", "\u0661", "x" * 129],
)
def test_names_that_do_not(name: str) -> None:
    problem = name_problem(name)
    assert problem is not None
    assert repr(name) in problem
    assert "letters, digits" in problem


@pytest.mark.parametrize("name", ["token", "tokenizer", "Token1", "TOKEN-x"])
def test_names_that_the_token_api_takes(name: str) -> None:
    assert "token API" in (name_problem(name) or "")


def test_an_empty_name() -> None:
    assert name_problem("") == "a model needs a name."


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("1.0", True),
        ("2024-05_a", True),
        ("v" * 64, True),
        ("v" * 65, False),
        ("", False),
        ("1/2", False),
        ("1 0", False),
        (".1", False),
        ("1.0\n", False),
    ],
)
def test_versions(version: str, good: bool) -> None:
    assert (version_problem(version) is None) is good


def test_precisions() -> None:
    for word in ("auto", "fp32", "tf32", "bf16", "fp16"):
        assert precision_problem(word) is None
    assert "choose from auto, fp32, tf32, bf16, fp16" in (precision_problem("FP16") or "")


def test_model_is_file_and_class() -> None:
    spec = ModelSpec("a", model="nets/c:d.py:Net", handler="mine.py")
    assert (spec.model_file, spec.model_class, spec.builtin_handler) == ("nets/c:d.py", "Net", False)
    assert ModelSpec("a").model_file is None
    assert ModelSpec("a", model="net.py").model_file == "", "no colon: no file, and package says so"
