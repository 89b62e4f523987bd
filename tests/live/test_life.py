"""A deployment's life, as a user types it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
import torch
from PIL import Image
from projects import clear, needs_java, nothing_left, pack_image, pack_tensor, servekit

from servekit.domain.deployment import State
from servekit.system import deployments, process, tokens

pytestmark = [pytest.mark.live, needs_java()]


@pytest.fixture(scope="module")
def model_and_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[torch.nn.Module, Path]]:
    project = tmp_path_factory.mktemp("life")
    model = pack_tensor(project)
    pack_image(project)
    (project / "servekit.toml").write_text(
        'schema = 1\n[server]\nmax_request_mib = 1\n[[models]]\nname = "net"\nweights = "net.pt"\n'
        'model = "net.py:Net"\nhandler = "tensor"\n[[models]]\nname = "tiny"\nweights = "tiny.pt"\n'
        'model = "tiny.py:Tiny"\nhandler = "image"\nbatch_size = 4\nmax_batch_delay_ms = 200\n'
        "[models.image]\nresize = 8\ncrop = 8\nchannels = 1\nmean = [0.5]\nstd = [0.5]\n"
    )
    done = servekit(project, "up", "--runtime", "local", "--gpus", "none", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [(row["model"], row["status"], row["gpu"], row["checked"]) for row in told["workers"]] == [
        ("net", "READY", "cpu", "worker"),
        ("tiny", "READY", "cpu", "worker"),
    ]
    assert all(row["canary"].startswith("answered in") and row["ready_s"] > 0 for row in told["workers"])
    yield model, project
    clear(project)


@pytest.fixture
def project(model_and_project: tuple[torch.nn.Module, Path]) -> Path:
    return model_and_project[1]


def state(project: Path) -> State:
    return deployments.find(project, "default")


def authorized(state: State, kind: str = "inference") -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens.read(state.key_file, kind).key}"}


def test_predictions_are_the_models(model_and_project: tuple[torch.nn.Module, Path]) -> None:
    model, project = model_and_project
    item = [0.5, -1.0, 2.0]
    with torch.inference_mode():
        wanted = model(torch.tensor([item]))[0].tolist()
    (project / "item.json").write_text(json.dumps(item))
    np.save(project / "item.npy", np.array(item, dtype=np.float32))
    for file in ("item.json", "item.npy"):
        done = servekit(project, "predict", "net", file)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == pytest.approx(wanted, abs=1e-6)


def test_status_logs_and_a_second_up(project: Path) -> None:
    (shown,) = json.loads(servekit(project, "status", "--json").stdout)
    assert shown["condition"] == "up"
    assert {row["precision"] for row in shown["workers"]} == {"fp32"}
    assert "precision fp32" in servekit(project, "logs", "--model", "tiny").stdout
    again = servekit(project, "up", "--runtime", "local")
    assert again.returncode == 7
    assert "up already" in again.stderr


def test_one_bad_item_of_a_batch_answers_for_itself(project: Path) -> None:
    running = state(project)
    good = project / "good.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(good)
    bodies = [good.read_bytes(), b"no image", good.read_bytes(), good.read_bytes()]

    def ask(body: bytes) -> int:
        headers = {**authorized(running), "Content-Type": "application/octet-stream"}
        url = f"{running.inference_url}/predictions/tiny"
        return requests.post(url, data=body, headers=headers, timeout=30).status_code

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, bodies)) == [200, 415, 200, 200]


def test_a_body_over_the_limit(project: Path) -> None:
    (project / "big.bin").write_bytes(bytes(2 * 1024 * 1024))
    done = servekit(project, "predict", "tiny", "big.bin")
    assert done.returncode == 10
    assert "HTTP 413" in done.stderr


def test_only_loopback_listens(project: Path) -> None:
    (server,) = process.servers(Path(state(project).home))
    listening = [c.laddr for c in server.net_connections() if c.status == psutil.CONN_LISTEN]
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert {address.port for address in listening} == set(state(project).ports.all())


def test_files_are_private(project: Path) -> None:
    home = Path(state(project).home)
    assert stat.S_IMODE((home / "key_file.json").stat().st_mode) == 0o600
    for path in (home, Path(state(project).scratch), *home.rglob("*")):
        assert path.is_symlink() or not stat.S_IMODE(path.stat().st_mode) & 0o077, path


@pytest.mark.parametrize("key", [None, "wrong"])
def test_nothing_without_the_token(project: Path, key: str | None) -> None:
    running = state(project)
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    answers = [
        requests.post(f"{running.inference_url}/predictions/net", data=b"[]", headers=headers, timeout=10),
        requests.get(f"{running.management_url}/models/net", headers=headers, timeout=10),
    ]
    assert [answer.status_code for answer in answers] == [400, 400]
    assert all("InvalidKeyException" in answer.text for answer in answers)


def test_nothing_can_be_registered(project: Path) -> None:
    running = state(project)
    headers = authorized(running, "management")
    archive = project / "model_store" / "net.mar"
    answer = requests.post(f"{running.management_url}/models?url=file://{archive}", headers=headers, timeout=10)
    assert answer.status_code == 405
    war = project / "flow.war"
    with zipfile.ZipFile(war, "w") as out:
        manifest = {"workflow": {"workflowName": "flow", "specFile": "spec.yaml"}, "archiverVersion": "0"}
        out.writestr("WAR-INF/MANIFEST.json", json.dumps(manifest))
        out.writestr("spec.yaml", "models: {}\ndag: {}\n")
    before = sorted(project.rglob("*.war"))
    # The last one is within allowed_urls: only the store that takes nothing is left to stop it.
    inside = Path(running.home) / "models" / "inside.war"
    shutil.copy(war, inside)
    try:
        for url in (f"file://{war}", "flow.war", inside.as_uri()):
            answer = requests.post(f"{running.management_url}/workflows?url={url}", headers=headers, timeout=10)
            assert answer.status_code >= 400, answer.text
        # Not the workflow's content: it was refused while it was being written, before it was read.
        assert "DownloadArchiveException" in answer.text
    finally:
        inside.unlink()
    listed = requests.get(f"{running.management_url}/workflows", headers=headers, timeout=10)
    assert listed.json().get("workflows", []) == []
    assert sorted(project.rglob("*.war")) == before


def test_the_curl_command_works(project: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    for kind in ("inference", "management"):
        shown = servekit(project, "token", "show", "--curl", "--kind", kind).stdout
        answer = subprocess.run(shown, shell=True, capture_output=True, text=True, check=True).stdout
        assert "Exception" not in answer
        assert json.loads(answer)


def test_rotating_kills_the_old_token_and_ours_go_on(project: Path) -> None:
    running = state(project)
    old = authorized(running)
    new = servekit(project, "token", "rotate").stdout.strip()
    assert f"Bearer {new}" != old["Authorization"]
    assert requests.get(f"{running.inference_url}/ping", headers=old, timeout=10).status_code == 400
    (project / "item.json").write_text("[1, 2, 3]")
    assert servekit(project, "predict", "net", "item.json").returncode == 0


def test_the_table_of_up_and_status(echo_project: Path) -> None:
    done = servekit(echo_project, "up", "echo", "--runtime", "local", "--gpus", "none", "--name", "table")
    assert done.returncode == 0, done.stderr
    running = deployments.find(echo_project, "table")
    shown = servekit(echo_project, "status").stdout
    assert f"table is up at {running.inference_url}" in done.stdout
    assert f"table: up  {running.inference_url}  local  CPU" in shown
    answer = json.loads(servekit(echo_project, "predict", "echo", "example.txt").stdout)
    for table in (done.stdout, shown):
        (row,) = (line.split() for line in table.splitlines() if line.split()[:1] == ["echo"])
        assert row[2:5] == [str(answer["pid"]), "READY", "cpu"], "the worker that answers is the one listed"
    assert "Starting TorchServe" not in done.stdout, "stdout holds results, stderr progress"
    assert servekit(echo_project, "down").returncode == 0
    nothing_left(echo_project, "table")


def test_a_killed_server_is_gone_and_the_next_up_clears_it(project: Path) -> None:
    """Last of this module: it ends what the others share."""
    (server,) = process.servers(Path(state(project).home))
    os.kill(server.pid, signal.SIGKILL)
    server.wait(10)
    (shown,) = json.loads(servekit(project, "status", "--json").stdout)
    assert shown["condition"] == "gone"
    (project / "servekit.toml").unlink()
    done = servekit(project, "up", "net", "--runtime", "local", "--gpus", "none")
    assert done.returncode == 0, done.stderr
    assert "starting anew" in done.stderr
    assert servekit(project, "predict", "net", "item.json").returncode == 0
    assert servekit(project, "down").returncode == 0
    nothing_left(project)
    assert servekit(project, "down").returncode == 9
