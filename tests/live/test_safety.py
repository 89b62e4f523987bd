"""What a running server refuses even to those who hold a token, and what rotation must not open.

Who has no token, who listens and what may be read by others is in test_life.py, on the deployment there.
"""

from __future__ import annotations

import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import psutil
import pytest
import requests
from projects import needs_java, pack_workflow, servekit

from servekit.domain.deployment import State
from servekit.system import deployments, process, tokens, torchserve

pytestmark = [pytest.mark.live, needs_java()]


@pytest.fixture(scope="module")
def running(
    make_project: Callable[[str, Path], AbstractContextManager[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[State]:
    with make_project("tensor", tmp_path_factory.mktemp("safety")) as project:
        done = servekit(project, "up", "net", "--runtime", "local", "--gpus", "none")
        assert done.returncode == 0, done.stderr
        yield deployments.find(project, "default")


def authorized(state: State, kind: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.read(state.key_file, kind).key}"}


def answers(state: State) -> bool:
    return torchserve.predict(state, "net", b"[1, 2, 3]", "application/json").status == 200


def files(state: State) -> set[Path]:
    """Everything on disk that is the server's, besides what it logs."""
    found = {path for folder in (state.home, state.scratch) for path in Path(folder).rglob("*")}
    return {path for path in found if Path(state.home) / "logs" not in path.parents}


def test_workers_listen_on_no_port(running: State) -> None:
    (server,) = process.servers(Path(running.home))
    workers = server.children(recursive=True)
    assert workers
    listening = [
        c.laddr for worker in workers for c in worker.net_connections("inet") if c.status == psutil.CONN_LISTEN
    ]
    assert listening == [], "they speak through Unix sockets in the scratch folder"
    assert stat.S_IMODE(Path(running.scratch).stat().st_mode) == 0o700


@pytest.mark.parametrize(("held", "path"), [("inference", "management"), ("management", "inference")])
def test_a_token_opens_only_its_own_api(running: State, held: str, path: str) -> None:
    headers = authorized(running, held)
    if path == "management":
        answer = requests.get(f"{running.management_url}/models/net", headers=headers, timeout=10)
    else:
        url = f"{running.inference_url}/predictions/net"
        answer = requests.post(url, data=b"[1, 2, 3]", headers=headers, timeout=10)
    assert answer.status_code == 400
    assert "InvalidKeyException" in answer.text


def test_an_archive_at_an_allowed_url_is_not_registered(running: State) -> None:
    """allowed_urls names the deployment's models folder: only enable_model_api stands in the way there."""
    headers = authorized(running, "management")
    archive = Path(running.home) / "models" / "more.mar"
    shutil.copyfile(running.models[0].archive, archive)
    try:
        url = f"{running.management_url}/models?model_name=more&url=file://{archive}"
        assert requests.post(url, headers=headers, timeout=10).status_code == 405
    finally:
        archive.unlink()
    assert requests.delete(f"{running.management_url}/models/net", headers=headers, timeout=10).status_code == 405
    assert requests.get(f"{running.management_url}/models/more", headers=headers, timeout=10).status_code == 404
    assert answers(running)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        # allowed_urls lets the models folder through: only the closed store is in the way.
        ("file://{models}/more/flow.war", "Failed to download"),
        ("file://{models}/../../../../flow.war", "Failed to download"),
        ("file://{project}/flow.war", "does not match any allowed URL"),
        ("flow.war", "not found in workflow store"),
        ("{project}/flow.war", "not found in workflow store"),
        # The closed store is /proc, and this would lead out of it.
        ("self/root{project}/flow.war", "not found in workflow store"),
    ],
)
def test_no_workflow_is_registered(running: State, url: str, reason: str) -> None:
    """TorchServe gates POST /models but not POST /workflows, which unpacks and runs code."""
    headers = authorized(running, "management")
    models = Path(running.home) / "models"
    project = Path(running.home).parents[2]
    (models / "more").mkdir()
    wars = (models / "more" / "flow.war", models / "flow.war", project / "flow.war")
    for war in wars if "more" not in url else wars[:1]:  # a file of that name in the store would hide the copy
        pack_workflow(war, "net")
    try:
        before = files(running)
        wanted = {"url": url.format(models=models, project=project)}
        answer = requests.post(f"{running.management_url}/workflows", params=wanted, headers=headers, timeout=60)
        assert answer.status_code in (400, 404), answer.text
        assert reason in answer.json()["message"]
        assert files(running) == before, "nothing was downloaded or unpacked"
    finally:
        for war in wars:
            war.unlink(missing_ok=True)
        (models / "more").rmdir()
    listed = requests.get(f"{running.management_url}/workflows", headers=headers, timeout=10).json()
    assert listed.get("workflows", []) == []
    assert answers(running)


def test_rotation_keeps_the_key_file_private_and_the_other_token(running: State) -> None:
    old, management = (authorized(running, kind) for kind in ("inference", "management"))
    done = servekit(Path(running.home).parents[2], "token", "rotate")
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(running.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(running.home).stat().st_mode) == 0o700
    url = f"{running.inference_url}/predictions/net"
    refused = requests.post(url, data=b"[1, 2, 3]", headers=old, timeout=10)
    assert refused.status_code == 400
    assert "InvalidKeyException" in refused.text
    assert requests.get(f"{running.management_url}/models/net", headers=management, timeout=10).status_code == 200
    assert answers(running)
