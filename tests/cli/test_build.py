"""``servekit build`` as a user types it."""

from __future__ import annotations

import json

import pytest

from servekit.cli.main import main


def test_dry_run_prints_the_command_and_needs_no_engine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVEKIT_DOCKER", "/nowhere/docker")
    with pytest.raises(SystemExit) as exit_:
        main(["build", "--dry-run", "--json", "--tag", "mine:1", "--torch", "torch==2.9.1"])
    assert exit_.value.code == 0
    argv = json.loads(capsys.readouterr().out)["argv"]
    assert argv[:4] == ["/nowhere/docker", "build", "--tag", "mine:1"]
    assert "TORCH_SPEC=torch==2.9.1" in argv


def test_without_docker_the_exit_code_is_the_hosts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SERVEKIT_DOCKER", "/nowhere/docker")
    with pytest.raises(SystemExit) as exit_:
        main(["build"])
    assert exit_.value.code == 5
    said = capsys.readouterr()
    assert said.out == ""
    assert "/nowhere/docker is not installed" in said.err
