"""What all tests share: golden files, compared exactly and rewritten only when asked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

_GOLDEN = Path(__file__).parent / "golden"
Golden = Callable[[str, str], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Rewrite tests/golden/; read the diff before you commit."
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """``golden(name, text)``: ``text`` is exactly what tests/golden/<name> holds."""

    def compare(name: str, text: str) -> None:
        path = _GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"tests/golden/{name} differs; see --update-golden"

    return compare
