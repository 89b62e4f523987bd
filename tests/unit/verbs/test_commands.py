"""up, down, status, token, logs and init: their decisions, with the outside world replaced."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from nouns import deployment, gpu, state

from servekit.domain.deployment import State
from servekit.domain.plan import Plan
from servekit.errors import ConfigError, ConflictError, HostError, NotRunningError, StartError
from servekit.system import deployments, docker, execute, probe, process, tokens
from servekit.verbs import down, init, logs, ready, status, token, up


@pytest.mark.parametrize(
    ("wanted", "engine", "image", "expected", "why"),
    [
        ("local", None, True, "local", "as asked for"),
        ("docker", None, True, "docker", "as asked for"),
        ("auto", None, True, "docker", "an engine answers and the image"),
        ("auto", None, False, "local", "has no image"),
        ("auto", "it is off.", True, "local", "it is off."),
        ("docker", "it is off.", True, None, "it is off."),
        ("docker", None, False, None, "there is no image"),
    ],
)
def test_which_runtime(
    monkeypatch: pytest.MonkeyPatch, wanted: str, engine: str | None, image: bool, expected: str | None, why: str
) -> None:
    monkeypatch.setattr(docker, "engine_problem", lambda: engine)
    monkeypatch.setattr(docker, "image_exists", lambda _: image)
    if expected is None:
        with pytest.raises(HostError, match=why):
            up._runtime(wanted, None)
        return
    runtime, tag, told = up._runtime(wanted, None)
    assert (runtime, tag) == (expected, docker.DEFAULT_IMAGE if expected == "docker" else None)
    assert why in told


@pytest.fixture(autouse=True)
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker, "homes", lambda: ())


def record(root: Path, name: str = "default", **changes: Any) -> State:
    home = deployments.host_paths(root, name).home
    (home / "logs").mkdir(parents=True)
    one = state(home, **changes)
    deployments.save(one)
    return one


@pytest.mark.parametrize("failure", [StartError("no"), KeyboardInterrupt(), OSError("x")])
def test_a_failed_start_is_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    host = deployments.host_paths(tmp_path, "default")
    prepared = up.Prepared(deployment(host=host, inside=host), Plan((), ("a note",)))
    calls: list[str] = []

    def run(_: Plan) -> None:
        host.home.mkdir(parents=True)
        calls.append("run")

    def wait(*_: Any) -> None:
        raise failure

    monkeypatch.setattr(up, "prepare", lambda *_, **__: prepared)
    monkeypatch.setattr(execute, "run", run)
    monkeypatch.setattr(ready, "wait", wait)
    monkeypatch.setattr(process, "stop", lambda _: calls.append("stop"))
    said: list[str] = []
    with pytest.raises(type(failure)):
        up.up(up.UpRequest(), tmp_path, said.append)
    assert calls == ["run", "stop"]
    assert not host.home.parent.exists()
    assert "a note" in said
    with deployments.lock(tmp_path, "default"):
        pass


def test_gpus_are_proven_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = up.Prepared(deployment(gpus=(gpu(0),)), Plan(()))
    monkeypatch.setattr(up, "prepare", lambda *_, **__: prepared)

    def refuse(_: Any) -> None:
        raise HostError("no kernel runs")

    monkeypatch.setattr(probe, "check_cuda", refuse)
    monkeypatch.setattr(execute, "run", lambda _: pytest.fail("something was written"))
    with pytest.raises(HostError, match="no kernel runs"):
        up.up(up.UpRequest(), tmp_path, lambda _: None)


def test_a_second_up_of_a_running_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = record(tmp_path)
    monkeypatch.setattr(process, "servers", lambda _: ("frontend",))
    with pytest.raises(ConflictError, match=f"'default' is up already at {one.inference_url}"):
        up._refuse_second(tmp_path, "default", lambda _: None)
    assert Path(one.home).exists()


def test_the_remains_of_a_dead_deployment_are_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = record(tmp_path)
    monkeypatch.setattr(process, "servers", lambda _: ())
    monkeypatch.setattr(process, "stop", lambda _: False)
    said: list[str] = []
    up._refuse_second(tmp_path, "default", said.append)
    assert not Path(one.home).exists()
    assert "is gone" in said[0]


def test_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[Path] = []
    monkeypatch.setattr(process, "stop", stopped.append)
    with pytest.raises(NotRunningError):
        down.down(tmp_path, None)
    with pytest.raises(NotRunningError, match="no deployment 'x'"):
        down.down(tmp_path, "x")
    one = record(tmp_path, "only")
    assert down.down(tmp_path, None) == "only"
    assert stopped == [Path(one.home)]
    assert not Path(one.home).exists()


def test_down_also_clears_a_start_that_left_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "stop", lambda _: True)
    home = deployments.host_paths(tmp_path, "half").home
    home.mkdir(parents=True)
    assert down.down(tmp_path, None) == "half"
    assert not home.exists()


def test_down_removes_containers_by_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    removed: list[Path] = []
    monkeypatch.setattr(docker, "remove", removed.append)
    one = record(tmp_path, runtime="docker", container="c")
    down.down(tmp_path, "default")
    assert removed == [Path(one.home)]


def row(status_: str) -> ready.Row:
    return ready.Row("digits", "1.0", "9000", 11, status_, "cpu", "plan", "fp32")


def test_status(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert status.status(tmp_path, None) == ()
    record(tmp_path)  # two workers wanted
    monkeypatch.setattr(process, "servers", lambda _: ())
    assert status.status(tmp_path, None)[0].condition == "gone"
    monkeypatch.setattr(process, "servers", lambda _: ("frontend",))

    def silent(_: State) -> None:
        raise NotRunningError("does not answer")

    monkeypatch.setattr(ready, "rows", silent)
    assert status.status(tmp_path, "default")[0].condition == "starting"
    monkeypatch.setattr(ready, "rows", lambda _: (row("READY"), row("LOADING")))
    (one,) = status.status(tmp_path, None)
    assert (one.condition, one.reason[:33]) == ("degraded", "1 of 2 workers are READY; see: se")
    monkeypatch.setattr(ready, "rows", lambda _: (row("READY"), row("READY")))
    assert status.status(tmp_path, None)[0].condition == "up"


def test_curl_is_a_command_line_that_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = record(tmp_path)
    monkeypatch.setattr(tokens, "read", lambda _, kind: tokens.Token(kind, f"{kind}-key", None))
    assert shlex.split(token.curl(tmp_path, None, "inference")) == [
        *("curl", "-sS", "-H", "Authorization: Bearer inference-key", "-H", "Content-Type: image/png"),
        *("--data-binary", "@/srv/example.png", f"{one.inference_url}/predictions/digits"),
    ]
    assert shlex.split(token.curl(tmp_path, None, "management"))[-1] == f"{one.management_url}/models/digits"


def test_no_token_without_authorization(tmp_path: Path) -> None:
    record(tmp_path, auth=False)
    for call in (token.show, token.rotate, token.curl):
        with pytest.raises(ConfigError, match="runs without token authorization"):
            call(tmp_path, None, "inference")


def test_logs_are_merged_by_time(tmp_path: Path) -> None:
    folder = Path(record(tmp_path).home) / "logs"
    (folder / "model.log").write_text(
        "2026-12-01T05:00:01,000 INFO W-9000-digits_1.0-stdout - a\n"
        "2026-12-01T05:00:03,000 INFO W-9001-other_1.0-stdout - c\n"
    )
    (folder / "server.log").write_text("2026-12-01T05:00:02,000 WARN main - b\n  its traceback\n")
    lines = list(logs.logs(tmp_path, None, lines=100, follow=False, model=None))
    assert [line[-1] for line in lines] == ["a", "b", "k", "c"]
    assert list(logs.logs(tmp_path, None, lines=1, follow=False, model=None)) == lines[-1:]
    assert list(logs.logs(tmp_path, None, lines=9, follow=False, model="digits")) == lines[:1]
    assert list(logs.logs(tmp_path, None, lines=0, follow=False, model=None)) == []


def test_init_writes_what_is_missing_and_never_twice(tmp_path: Path) -> None:
    (tmp_path / ".gitignore").write_text("model_store/")
    assert [path.name for path in init.init(tmp_path)] == ["servekit.toml", ".gitignore"]
    assert (tmp_path / ".gitignore").read_text() == "model_store/\n.servekit/\n"
    assert (tmp_path / "servekit.toml").read_text() == init.template()
    with pytest.raises(ConflictError, match="exists already"):
        init.init(tmp_path)


@pytest.mark.parametrize("where", ["process", "container"])
def test_a_server_whose_folder_was_deleted_is_not_denied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    home, other = deployments.of_home(tmp_path) / "a", tmp_path / "elsewhere" / "b"
    stopped, removed = [], []
    monkeypatch.setattr(process, "labelled", lambda folder: (home,) if where == "process" else ())
    monkeypatch.setattr(docker, "homes", lambda: (home, other) if where == "container" else (other,))
    monkeypatch.setattr(process, "stop", stopped.append)
    monkeypatch.setattr(docker, "remove", removed.append)
    (found,) = status.status(tmp_path, None)
    assert (found.name, found.condition, found.state) == ("a", "lost", None)
    assert "servekit down --name a" in found.reason
    assert status.status(tmp_path, "a") == (found,)
    with pytest.raises(ConflictError, match="still runs, although its folder"):
        up.up(up.UpRequest(name="a"), tmp_path, lambda _: None)
    assert down.down(tmp_path, None) == "a"
    assert home in stopped
    assert removed == ([home] if where == "container" else [])


def test_logs_of_a_model_that_is_not_served(tmp_path: Path) -> None:
    record(tmp_path)
    with pytest.raises(NotRunningError, match="does not serve 'nope'"):
        list(logs.logs(tmp_path, None, lines=5, follow=False, model="nope"))
