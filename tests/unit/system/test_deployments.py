from __future__ import annotations

import json
from pathlib import Path

import pytest
from nouns import state

from servekit.errors import ConfigError, ConflictError, NotRunningError, StorageError
from servekit.system import deployments


def up(root: Path, name: str) -> None:
    home = deployments.host_paths(root, name).home
    home.mkdir(parents=True)
    deployments.save(state(home))


def test_where_things_are(tmp_path: Path) -> None:
    paths = deployments.host_paths(tmp_path, "night-1")
    assert paths.home == tmp_path / ".servekit" / "deployments" / "night-1"
    assert paths.cache == tmp_path / ".servekit" / "cache"
    other = deployments.host_paths(tmp_path / "other", "night-1")
    assert paths.scratch != other.scratch, "two projects may have a deployment of one name"
    assert paths.scratch == deployments.host_paths(tmp_path, "night-1").scratch


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "-a", ".a", "a b", "a\n", "ü", "x" * 64])
def test_names_that_would_leave_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a deployment's name"):
        deployments.host_paths(tmp_path, name)


def test_a_state_is_found_again(tmp_path: Path) -> None:
    up(tmp_path, "default")
    found = deployments.find(tmp_path, None)
    assert found == deployments.find(tmp_path, "default") == state(deployments.host_paths(tmp_path, "default").home)
    assert [path.name for path in Path(found.home).iterdir()] == ["state.json"]
    assert (Path(found.home) / "state.json").stat().st_mode & 0o777 == 0o600


def test_finding(tmp_path: Path) -> None:
    with pytest.raises(NotRunningError, match="No deployment is up"):
        deployments.find(tmp_path, None)
    up(tmp_path, "b")
    up(tmp_path, "a")
    with pytest.raises(ConfigError, match=r"Several deployments are up \(a, b\)"):
        deployments.find(tmp_path, None)
    assert deployments.find(tmp_path, "b").name == "b"
    with pytest.raises(NotRunningError, match=r"no deployment 'c' .*\(there are: a, b\)"):
        deployments.find(tmp_path, "c")


def test_homes_without_a_state_are_listed_but_not_up(tmp_path: Path) -> None:
    assert deployments.homes(tmp_path) == ()
    up(tmp_path, "a")
    started_only = deployments.host_paths(tmp_path, "half").home
    started_only.mkdir()
    (started_only.parent / "a-file").touch()
    assert [home.name for home in deployments.homes(tmp_path)] == ["a", "half"]
    assert [one.name for one in deployments.states(tmp_path)] == ["a"]
    assert deployments.load(started_only) is None


def test_a_state_of_another_servekit(tmp_path: Path) -> None:
    up(tmp_path, "a")
    path = deployments.host_paths(tmp_path, "a").home / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 99}))
    with pytest.raises(ConfigError, match="has schema 99; this servekit reads 1"):
        deployments.find(tmp_path, "a")


def test_one_at_a_time(tmp_path: Path) -> None:
    with deployments.lock(tmp_path, "a"):
        with pytest.raises(ConflictError, match="starting or stopping 'a'"), deployments.lock(tmp_path, "a"):
            pass
        with deployments.lock(tmp_path, "b"):
            pass
    with deployments.lock(tmp_path, "a"):
        pass


def test_a_lock_is_free_after_a_failure(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), deployments.lock(tmp_path, "a"):
        raise KeyboardInterrupt
    with deployments.lock(tmp_path, "a"):
        pass


def test_a_project_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / ".servekit").write_text("a file where a folder belongs")
    with pytest.raises(StorageError, match="cannot be written"), deployments.lock(tmp_path, "a"):
        pass
