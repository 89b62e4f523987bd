"""What we read of Locust's files, and how much of it we start; Locust itself is in tests/live."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from servekit import assets
from servekit.domain.load import Record
from servekit.system import locust


def test_the_record_is_the_locustfiles() -> None:
    source = (assets.loadtests() / "locustfile.py").read_text()
    assert f'RECORD = struct.Struct("{locust._RECORD.format}")' in source
    assert f'"{locust._CUT_OFF}"' in source


def test_records_of_a_process(tmp_path: Path) -> None:
    packed = struct.pack("<QQHHI", 2_500_000_000, 4_000_000, 200, 0, 31)
    packed += struct.pack("<QQHHI", 3_000_000_000, 9_000_000, 503, 1, 40)
    packed += struct.pack("<QQHHI", 3_000_000_000, 9_000_000, 0, 65535, 0)
    path = tmp_path / "17.records"
    path.write_bytes(packed + b"torn")
    path.with_suffix(".errors").write_text(json.dumps("queue\nfull") + "\n")
    assert locust._read(path, 2.0) == [
        Record(0.5, 4.0, 200),
        Record(1.0, 9.0, 503, "queue\nfull"),
        Record(1.0, 9.0, 0, "other"),
    ]


def test_fresh_records_are_read_once(tmp_path: Path) -> None:
    path, positions = tmp_path / "17.records", dict[Path, int]()
    one = struct.pack("<QQHHI", 1_000_000_000, 1_000_000, 200, 0, 1)
    path.write_bytes(one + one[:10])
    assert len(locust._fresh(path, 0, positions)) == 1
    path.write_bytes(one + one)
    assert len(locust._fresh(path, 0, positions)) == 1
    assert locust._fresh(path, 0, positions) == []


@pytest.mark.parametrize(
    ("users", "cores", "processes"), [(8, 2, 1), (64, 2, 1), (64, 16, 2), (512, 16, 8), (31, 64, 1)]
)
def test_half_the_cores_are_left_to_the_server(users: int, cores: int, processes: int) -> None:
    assert locust.processes_for(users, cores) == processes


def test_the_environment_does_not_change_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCUST_USERS", "9999")
    monkeypatch.setenv("http_proxy", "http://proxy.invalid")
    environment = locust._environment(tmp_path / "plan.json")
    assert "LOCUST_USERS" not in environment
    assert "http_proxy" not in environment
    assert environment["SERVEKIT_LOADTEST"] == str(tmp_path / "plan.json")


@pytest.mark.parametrize(("seconds", "told"), [(30.0, "30s"), (1.5, "2s"), (0.25, "1s"), (5400.0, "5400s")])
def test_any_duration_is_one_that_locust_reads(seconds: float, told: str) -> None:
    """It takes whole seconds and nothing else."""
    argv = locust._argv(locust.LoadJob("http://127.0.0.1:1", "/predictions/m", (), None, 1, seconds), 1)
    assert argv[argv.index("--run-time") + 1] == told
