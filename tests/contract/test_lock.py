"""Locks, wheels and the bill of materials by the real tools, against a folder of tiny wheels."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from servekit.errors import ConfigError, ModelError
from servekit.system.trust import lock, sbom, wheels


def wheel(folder: Path, name: str, version: str, needs: str = "", tag: str = "py3-none-any") -> Path:
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: {tag}\n",
    }
    with zipfile.ZipFile(path, "w") as out:
        for member, text in files.items():
            out.writestr(member, text)
        out.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in (*files, f"{info}/RECORD")))
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's settings point to a folder of wheels, and to no network."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel(folder, "skt_one", "1.0", "skt-two>=1")
    wheel(folder, "skt_two", "1.0")
    wheel(folder, "skt_two", "1.5")
    for key in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    return folder


def requirements(folder: Path, text: str) -> Path:
    path = folder / "requirements.txt"
    path.write_text(text)
    return path


def test_the_newest_that_fits_with_the_hash_of_its_file(index: Path, tmp_path: Path) -> None:
    found = lock.resolve(requirements(tmp_path, "skt-one\n"), "3.11", "x86_64-manylinux_2_28")
    assert [(package.name, package.version) for package in found.packages] == [("skt-one", "1.0"), ("skt-two", "1.5")]
    digest = hashlib.sha256((index / "skt_two-1.5-py3-none-any.whl").read_bytes()).hexdigest()
    assert found.packages[1].hashes == (f"sha256:{digest}",)
    assert lock.parse(lock.render(found)) == found


def test_nothing_fits(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"cannot be resolved for Python 3\.11") as caught:
        lock.resolve(requirements(tmp_path, "skt-two>=2\n"), "3.11", None)
    assert "skt-two" in caught.value.detail


def test_source_alone_is_not_enough(index: Path, tmp_path: Path) -> None:
    (index / "skt_two-1.5-py3-none-any.whl").rename(index / "skt_two-1.5-cp27-cp27m-win32.whl")
    found = lock.resolve(requirements(tmp_path, "skt-two\n"), "3.11", "x86_64-manylinux_2_28")
    assert found.packages[0].version == "1.0"


@pytest.mark.parametrize("line", ["-e .", "git+https://x/y", "./here", "a @ https://x/a.whl", "https://x/a.whl"])
def test_lines_that_no_lock_can_hold(tmp_path: Path, line: str) -> None:
    with pytest.raises(ConfigError, match="has no fixed content") as caught:
        lock.resolve(requirements(tmp_path, f"numpy\n{line}\n"), None, None)
    assert "requirements.txt:2: " in caught.value.message


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        lock.resolve(tmp_path / "none.txt", None, None)
    (tmp_path / "b.txt").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        lock.resolve(tmp_path / "b.txt", None, None)
    with pytest.raises(ConfigError, match="--python"):
        lock.resolve(requirements(tmp_path, "a\n"), "2.7", None)


def test_the_wheels_install_without_an_index(index: Path, tmp_path: Path) -> None:
    found = lock.resolve(requirements(tmp_path, "skt-one\n"), None, None)
    folder = tmp_path / "m.wheels"
    fetched = wheels.fetch(found, folder, lambda _: None)
    assert [path.name for path in fetched] == ["skt_one-1.0-py3-none-any.whl", "skt_two-1.5-py3-none-any.whl"]
    (tmp_path / "l.lock").write_text(lock.render(found))
    argv = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--find-links", str(folder))
    target = tmp_path / "site"
    subprocess.run((*argv, "--require-hashes", "--target", str(target), "-r", str(tmp_path / "l.lock")), check=True)
    assert (target / "skt_two.py").read_text() == "VERSION = '1.5'\n"
    before = fetched[0].stat().st_mtime_ns
    assert wheels.fetch(found, folder, lambda _: None)[0].stat().st_mtime_ns == before, "complete: left alone"


def test_altered_and_missing_wheels(index: Path, tmp_path: Path) -> None:
    found = lock.resolve(requirements(tmp_path, "skt-one\n"), None, None)
    folder = tmp_path / "m.wheels"
    one, two = wheels.fetch(found, folder, lambda _: None)
    one.write_bytes(one.read_bytes() + b" ")
    two.unlink()
    with pytest.raises(ModelError, match="2 problems") as caught:
        wheels.check(found, folder)
    assert "skt_one-1.0-py3-none-any.whl is not the wheel that was locked" in caught.value.message
    assert "there is no wheel of skt-two 1.5" in caught.value.message
    wheels.fetch(found, folder, lambda _: None)
    assert len(wheels.check(found, folder)) == 2


def test_an_index_that_changed_leaves_nothing(index: Path, tmp_path: Path) -> None:
    found = lock.resolve(requirements(tmp_path, "skt-one\n"), None, None)
    wheel(index, "skt_two", "1.5", "skt-one")
    with pytest.raises(ModelError, match="cannot be fetched"):
        wheels.fetch(found, tmp_path / "m.wheels", lambda _: None)
    assert not (tmp_path / "m.wheels").exists()
    assert not list(tmp_path.glob(".servekit-work-*"))


def test_the_bill_of_materials(index: Path, tmp_path: Path) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    found = lock.resolve(requirements(tmp_path, "skt-one\n"), None, None)
    text = sbom.render(found, "net", "1.2")
    assert text == sbom.render(found, "net", "1.2")
    assert text != sbom.render(found, "net", "1.3")
    data = json.loads(text)
    assert data["specVersion"] == "1.6"
    assert data["metadata"]["component"]["name"] == "net"
    assert "timestamp" not in data["metadata"]
    assert [part["purl"] for part in data["components"]] == ["pkg:pypi/skt-one@1.0", "pkg:pypi/skt-two@1.5"]
    digest = found.packages[0].hashes[0].removeprefix("sha256:")
    assert data["components"][0]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.decode()) is None
