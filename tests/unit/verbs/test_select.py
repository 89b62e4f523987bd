from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import pytest
import yaml
from nouns import gpu, served

from servekit.domain.gpu import GpuPlan
from servekit.domain.model import ModelSpec
from servekit.domain.project import Project
from servekit.errors import ModelError
from servekit.verbs import select

CPU, TWO = GpuPlan(), GpuPlan((gpu(0), gpu(1)))


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name in ("b", "a"):
        archive(tmp_path / "model_store" / f"{name}.mar", name)
    return tmp_path


def archive(path: Path, name: str) -> None:
    config = {"batchSize": 4, "maxBatchDelay": 7, "handler": {"kind": "image", "example": "example/x.png"}}
    manifest = {"model": {"modelName": name, "handler": "h.py", "configFile": "c"}}
    path.parent.mkdir(exist_ok=True, parents=True)
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        out.writestr("c", yaml.safe_dump(config))


def choose(root: Path, *names: str, toml: Project = Project(), gpus: GpuPlan = CPU):  # noqa: B008 - frozen
    return select.models(select.archives(names, toml, root, unpack=False), toml, root, gpus, unpack=False)


def test_a_name_is_an_archive_of_the_store_a_path_is_itself(root: Path) -> None:
    archive(root / "other" / "c.mar", "c")
    models, _ = choose(root, "b", "other/c.mar", "b")
    assert [model.name for model in models] == ["b", "c"]
    assert models[0].archive == root / "model_store" / "b.mar"


def test_no_name_is_everything(root: Path) -> None:
    assert [model.name for model in choose(root)[0]] == ["a", "b"], "the store"
    assert [model.name for model in choose(root, toml=Project((ModelSpec("b"),)))[0]] == ["b"], "the project"


def test_what_is_missing_is_listed_with_what_is_there(root: Path) -> None:
    with pytest.raises(ModelError) as caught:
        choose(root, "x", "a", "y")
    assert "2 problems" in caught.value.message
    assert "In the store: a, b." in caught.value.hint
    with pytest.raises(ModelError, match="There is nothing to serve"):
        choose(root / "elsewhere")


def test_two_archives_of_one_name(root: Path) -> None:
    archive(root / "copy.mar", "a")
    with pytest.raises(ModelError, match="both hold a model called 'a'"):
        choose(root, "a", "copy.mar")


def test_defaults_come_from_gpus_and_archive(root: Path) -> None:
    (model,), notes = choose(root, "a", gpus=TWO)
    assert (model.workers, model.batch_size, model.max_batch_delay_ms, model.threads) == (2, 4, 7, 4)
    assert (model.example, model.handler_kind) == ("example/x.png", "image")
    assert notes == ("CPU threads: 4 a worker (8 cores, 2 worker(s)).",)
    assert choose(root, "a")[0][0].workers == 1


def test_the_project_wins_over_the_archive(root: Path) -> None:
    toml = Project((ModelSpec("a", workers=1, batch_size=16, max_batch_delay_ms=2),))
    (model,), notes = choose(root, "a", toml=toml, gpus=TWO)
    assert (model.workers, model.batch_size, model.max_batch_delay_ms, model.threads) == (1, 16, 2, 8)
    assert notes[0] == "a: 1 worker(s) for 2 GPUs; some GPUs will not serve it."


def test_threads_are_shared_by_all_workers_and_never_none(root: Path) -> None:
    toml = Project((ModelSpec("a", workers=9), ModelSpec("b", workers=3)))
    assert {model.threads for model in choose(root, toml=toml)[0]} == {1}


def test_a_dry_run_fills_no_cache(root: Path) -> None:
    (model,), _ = choose(root, "a")
    assert not (root / ".servekit").exists()
    (unpacked,), _ = select.models(
        select.archives(("a",), Project(), root, unpack=True), Project(), root, CPU, unpack=True
    )
    assert unpacked.unpacked == model.unpacked
    assert (unpacked.unpacked / "c").is_file()


def test_pythonpath_loses_what_would_hide_the_archives_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("harmless/other.py", "module/model.py", "package/model/x", "runtime/servekit_worker/x", "data/w.pt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    model = served(members=("model.py", "servekit_worker/a.py", "w.pt"))
    entries = ["harmless", "module", "", str(tmp_path / "package"), "runtime", "data", "nowhere"]
    kept, dropped = select.python_path(os.pathsep.join(entries), (model,))
    assert kept == os.pathsep.join(str(tmp_path / name) for name in ("harmless", "data", "nowhere"))
    assert dropped == tuple(str(tmp_path / name) for name in ("module", "package", "runtime"))
    assert select.python_path("", (model,)) == (None, ())
