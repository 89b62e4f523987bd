"""A docker command that is not there; it is really looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from servekit.errors import HostError
from servekit.system import docker


def test_a_missing_command_is_a_problem_to_auto_and_an_error_to_everybody_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SERVEKIT_DOCKER", str(tmp_path / "no-docker"))
    assert "no-docker is not installed" in str(docker.engine_problem())
    with pytest.raises(HostError, match="no-docker is not installed"):
        docker.containers(Path("/h"))
