"""Locks: read back what was written, and tell what an environment has otherwise."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servekit.domain.lock import Lock, Locked, differences, normalised, packages, parse, render

H1, H2 = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
LOCK = Lock("3.11", "x86_64-manylinux_2_28", (Locked("numpy", "2.4.6", (H1, H2)), Locked("torch", "2.13.0", (H1,))))
TEXT = f"""\
# servekit requirements lock, schema 1: python 3.11, platform x86_64-manylinux_2_28
numpy==2.4.6 \\
    --hash={H1} \\
    --hash={H2}
torch==2.13.0 \\
    --hash={H1}
"""

names = st.from_regex(r"[a-z][a-z0-9]{0,8}(-[a-z0-9]{1,5})?", fullmatch=True)
versions = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}((a|rc|\.post)[0-9])?(\+cpu)?", fullmatch=True)
hashes = st.lists(st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True), min_size=1, max_size=4, unique=True)


def test_the_text() -> None:
    assert render(LOCK) == TEXT
    assert parse(TEXT) == LOCK


@given(st.dictionaries(names, st.tuples(versions, hashes), max_size=6))
def test_read_back(found: dict[str, tuple[str, list[str]]]) -> None:
    locked = tuple(Locked(name, version, tuple(sorted(all_))) for name, (version, all_) in sorted(found.items()))
    lock = Lock("3.12", "aarch64-manylinux_2_28", locked)
    assert parse(render(lock)) == lock
    assert render(parse(render(lock))) == render(lock)


@given(st.text(max_size=300))
def test_any_text_is_a_lock_or_a_value_error(text: str) -> None:
    try:
        parse(TEXT + text)
    except ValueError:
        return
    assert all(package.hashes for package in parse(TEXT + text).packages)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "line 1 is not the head"),
        ("numpy==1\n", "line 1 is not the head"),
        (TEXT.replace("schema 1", "schema 2"), "its schema is 2"),
        (TEXT + "requests\n", "line 7 is not NAME==VERSION"),
        (TEXT + "requests>=2\n", "line 7 is not NAME==VERSION"),
        (TEXT + "requests==2.0\n", "line 7: requests==2.0 has no hash"),
        (TEXT + f"Torch==2.0 --hash={H1}\n", "line 7: torch is there twice"),
        (TEXT + "requests==2.0 --hash=md5:00\n", "line 7 is not NAME==VERSION with hashes"),
        (TEXT + "-r other.txt\n", "line 7 is not"),
        (TEXT + "--index-url https://evil\n", "line 7 is not"),
        (TEXT + f"a @ https://x/a.whl --hash={H1}\n", "line 7"),
    ],
)
def test_what_is_no_lock(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse(text)


def test_comments_of_uv_are_skipped() -> None:
    assert packages(f"# via\n\nnumpy==1.0 \\\n    --hash={H1}\n    # via -r x\n") == (Locked("numpy", "1.0", (H1,)),)


@pytest.mark.parametrize(
    ("installed", "told"),
    [
        ({"numpy": "2.4.6", "torch": "2.13.0"}, ()),
        ({"numpy": "2.4.6", "torch": "2.13.0+cu130", "more": "1"}, ()),
        ({"numpy": "2.4.5", "torch": "2.13.0"}, ("numpy 2.4.6 is locked, and 2.4.5 is installed.",)),
        (
            {"torch": "2.14.0+cpu"},
            ("numpy 2.4.6 is locked, and not installed.", "torch 2.13.0 is locked, and 2.14.0+cpu is installed."),
        ),
    ],
)
def test_differences(installed: dict[str, str], told: tuple[str, ...]) -> None:
    assert differences(LOCK, installed) == told


def test_a_local_label_that_is_locked_counts() -> None:
    lock = Lock("3.11", "p", (Locked("torch", "2.13.0+cpu", (H1,)),))
    assert differences(lock, {"torch": "2.13.0+cpu"}) == ()
    assert len(differences(lock, {"torch": "2.13.0+cu130"})) == 1
    assert len(differences(lock, {"torch": "2.13.0"})) == 1


def test_names_as_pep_503_compares_them() -> None:
    assert normalised("Typing_Extensions..x") == "typing-extensions-x"
