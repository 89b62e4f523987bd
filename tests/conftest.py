"""What all tests share: ``--update-golden`` and the fixture that compares with golden files."""

from __future__ import annotations

import pytest
from golden_files import FOLDER, Golden


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="Rewrite tests/golden/; read the diff before a commit."
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    def compare(name: str, text: str) -> None:
        path = FOLDER / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8"), f"tests/golden/{name} differs; see --update-golden"

    return compare
