from __future__ import annotations

import json
from pathlib import Path

import pytest

from servekit.domain.project import Project
from servekit.errors import ConfigError
from servekit.system import project, worker_reports

REPORT = {
    "schema": 1,
    "model": "m",
    "pid": 7,
    "device": "cuda:0",
    "gpu_id": 0,
    "gpu_uuid": "GPU-1",
    "precision": "bf16",
    "precision_reason": "why",
    "threads": 2,
    "load_s": 1.5,
    "warmup_s": None,
    "warmup_batches": [],
    "torch": "2.13",
}


def test_reports_by_model_and_pid(tmp_path: Path) -> None:
    assert worker_reports.read(tmp_path) == {}
    folder = tmp_path / "workers"
    folder.mkdir()
    (folder / "m-7.json").write_text(json.dumps(REPORT))
    (folder / "m-8.json").write_text(json.dumps(REPORT)[:40])
    (folder / "m-9.json").write_text('{"model": "m"}')
    (folder / "m-10.json").write_text("[]")
    (folder / "m-7.tmp").write_text("{}")
    assert worker_reports.read(tmp_path) == {
        ("m", 7): worker_reports.WorkerReport("m", 7, "cuda:0", "GPU-1", "bf16", "why", 2, 1.5, None)
    }


def test_a_project_is_its_toml(tmp_path: Path) -> None:
    assert project.load(tmp_path) is None
    path = tmp_path / "servekit.toml"
    path.write_text("schema = 1\n")
    assert project.load(tmp_path) == Project()
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        project.load(tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        project.load(tmp_path)


def test_a_project_that_an_editor_of_windows_saved(tmp_path: Path) -> None:
    (tmp_path / "servekit.toml").write_bytes(b'\xef\xbb\xbfschema = 1\r\n[runtime]\r\ngpus = "0"\r\n')
    loaded = project.load(tmp_path)
    assert loaded is not None and loaded.runtime.gpus == "0"
