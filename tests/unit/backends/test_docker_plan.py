from __future__ import annotations

import itertools

import pytest
from golden_files import Golden
from nouns import HOST, at_home, deployment, gpu, served

from servekit.backends import docker
from servekit.domain.deployment import Deployment
from servekit.domain.gpu import Gpu
from servekit.domain.plan import Link, MakeFolder, RunCommand, WriteFile
from servekit.domain.server import Ports, ServerConfig

ROOT, USER = (0, 0), (1000, 100)


def in_docker(*gpus: Gpu, **changes: object) -> Deployment:
    fields = {"runtime": "docker", "inside": docker.INSIDE, "image": "servekit:0.1.0", **changes}
    return deployment(served(workers=2), gpus=gpus, **fields)


def command(deployment: Deployment, user: tuple[int, int] = USER) -> tuple[str, ...]:
    last = docker.up(deployment, user=user).steps[-1]
    assert isinstance(last, RunCommand)
    return last.argv


def values(argv: tuple[str, ...], option: str) -> list[str]:
    return [value for key, value in itertools.pairwise(argv) if key == option]


@pytest.mark.parametrize(
    ("case", "gpus", "user"),
    [("cpu", (), USER), ("two-gpus", (gpu(1), gpu(3)), USER), ("root", (), ROOT)],
)
def test_golden(case: str, gpus: tuple[Gpu, ...], user: tuple[int, int], golden: Golden) -> None:
    golden(f"docker-run-{case}.txt", "\n".join(command(in_docker(*gpus), user)) + "\n")


def test_the_container_runs_as_the_caller_but_never_as_root() -> None:
    assert values(command(in_docker()), "--user") == ["1000:100"]
    assert values(command(in_docker(), ROOT), "--user") == ["10001:10001"]


def test_roots_folders_are_given_to_the_images_user_who_may_read_the_rest() -> None:
    steps = docker.up(in_docker(), user=ROOT).steps
    owners = {step.path.name: step.owner for step in steps if isinstance(step, MakeFolder)}
    assert owners[HOST.home.name] == owners["logs"] == owners["workers"] == (10001, 10001)
    assert all(step.mode == 0o644 for step in steps if isinstance(step, WriteFile))
    mine = docker.up(in_docker(), user=USER).steps
    assert all(step.owner is None for step in mine if isinstance(step, MakeFolder))
    assert all(step.mode == 0o600 for step in mine if isinstance(step, WriteFile))


def test_links_point_where_the_container_sees_the_cache() -> None:
    links = [step for step in docker.up(in_docker(), user=USER).steps if isinstance(step, Link)]
    assert links
    assert all(link.target.startswith("/servekit/cache/") for link in links)


def test_only_three_ports_are_published_and_only_where_asked() -> None:
    argv = command(in_docker(ports=Ports.block(9100)))
    assert values(argv, "--publish") == [f"127.0.0.1:{port}:{port}" for port in (9100, 9101, 9102)]
    argv = command(in_docker(server=ServerConfig(bind="::1")))
    assert values(argv, "--publish")[0] == "[::1]:8080:8080"


def test_the_image_ends_dockers_options_and_begins_ours() -> None:
    argv = command(in_docker())
    assert argv.count("servekit:0.1.0") == 1
    assert argv[argv.index("servekit:0.1.0") + 1] == "/opt/servekit/java"
    assert argv[-7:] == (
        *("--python", "/opt/servekit/venv/bin/python", "-f", "/servekit/home/config.properties"),
        *("-s", "/servekit/home/models", "-ncs"),
    )


def test_hardening() -> None:
    argv = command(in_docker())
    assert "--read-only" in argv
    assert values(argv, "--cap-drop") == ["ALL"]
    assert "no-new-privileges" in values(argv, "--security-opt")
    assert "--privileged" not in argv


def test_two_projects_may_have_a_deployment_of_one_name() -> None:
    here, there = in_docker(), in_docker(host=at_home("/other/.servekit/deployments/default"))
    assert docker.container_name(here) != docker.container_name(there)
    assert docker.container_name(here) == docker.container_name(in_docker(gpu(0)))
    assert docker.container_name(here).startswith("servekit-default-")
    assert f"servekit.home={HOST.home}" in values(command(here), "--label")
