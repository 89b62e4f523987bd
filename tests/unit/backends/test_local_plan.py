from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from golden_files import Golden
from nouns import HOME, HOST, SHA, deployment, gpu, served

from servekit.backends import local
from servekit.backends.java import Runtime, quiet_options, server_argv
from servekit.domain.plan import Link, MakeFolder, StartProcess, WriteFile

RUNTIME = Runtime("/usr/bin/java", 17, "/venv/bin/python", "/venv/lib/site-packages")


@pytest.mark.parametrize(("major", "count"), [(11, 0), (17, 0), (21, 0), (22, 1), (23, 1), (24, 2), (25, 2)])
def test_newer_javas_are_told_what_is_allowed(major: int, count: int) -> None:
    options = ("--enable-native-access=ALL-UNNAMED", "--sun-misc-unsafe-memory-access=allow")
    assert quiet_options(major) == options[:count]


def test_golden_argv(golden: Golden) -> None:
    golden("server-argv.txt", "\n".join(server_argv(RUNTIME, HOST)) + "\n")


def test_options_of_java_come_before_its_class() -> None:
    argv = server_argv(Runtime("java", 25, "python", "/s p"), HOST)
    main = argv.index("org.pytorch.serve.ModelServer")
    assert all(argument.startswith("-") for argument in argv[1 : argv.index("-cp")])
    assert argv[argv.index("-cp") : main] == ("-cp", "/s p/ts/frontend/*")
    assert f"-Dservekit.home={HOME}" in argv[:main]
    assert argv[main + 1 :] == (
        *("--python", "python", "-f", f"{HOME}/config.properties", "-s", f"{HOME}/models", "-ncs"),
    )


def test_the_servers_environment() -> None:
    inherited = {
        "PATH": "/bin",
        "TS_CONFIG_FILE": "/evil",
        "TS_NUMBER_OF_GPU": "8",
        "PYTHONPATH": "/mine",
        "LANG": "de_DE",
        "LC_ALL": "POSIX",
        "LC_CTYPE": "tr_TR",
        "CUDA_VISIBLE_DEVICES": "7",
        "OMP_NUM_THREADS": "64",
        "LD_LIBRARY_PATH": "/cuda",
        "TSX": "kept",
    }
    two = deployment(served("a", threads=4), served("b", threads=2), gpus=(gpu(3), gpu(1)))
    assert local.server_environment(two, inherited, None) == {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/cuda",
        "TSX": "kept",
        "LC_ALL": "C.UTF-8",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "3,1",
        "TMPDIR": str(HOST.scratch),
        "TEMP": str(HOST.scratch),
        "LOG_LOCATION": f"{HOME}/logs",
        "METRICS_LOCATION": f"{HOME}/logs",
        "SERVEKIT_WORKER_REPORTS": f"{HOME}/workers",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    assert inherited["PYTHONPATH"] == "/mine", "the caller's mapping is left alone"


def test_no_gpu_is_an_empty_mask_not_a_missing_one() -> None:
    assert local.server_environment(deployment(), {}, None)["CUDA_VISIBLE_DEVICES"] == ""


def test_what_may_stay_of_pythonpath() -> None:
    assert local.server_environment(deployment(), {"PYTHONPATH": "/x"}, "/y")["PYTHONPATH"] == "/y"


def test_the_plan_writes_before_it_starts() -> None:
    plan = local.up(deployment(served(workers=2), gpus=(gpu(0), gpu(1))), RUNTIME, {"PATH": "/bin"}, None)
    *files, start = plan.steps
    assert isinstance(start, StartProcess)
    assert all(isinstance(step, (MakeFolder, WriteFile, Link)) for step in files)
    assert start.argv == server_argv(RUNTIME, HOST)
    assert (start.cwd, start.log, start.umask) == (HOME, HOME / "logs" / "console.log", 0o077)
    made: set[Path] = set()
    for step in files:
        if isinstance(step, MakeFolder):
            made.add(step.path)
            assert step.mode == 0o700
        else:
            assert step.path.parent in made, f"{step.path} comes before its folder"
    assert {HOME, HOME / "logs", HOME / "workers", HOME / "models", HOST.scratch} <= made


def test_a_model_is_a_folder_of_links_with_two_files_of_its_own() -> None:
    plan = local.up(deployment(gpus=(gpu(2),)), RUNTIME, {}, None)
    folder = HOME / "models" / "digits"
    links = {step.path.name: step.target for step in plan.steps if isinstance(step, Link)}
    cache = f"/srv/demo/.servekit/cache/{SHA}"
    assert links == {name: f"{cache}/{name}" for name in ("image_handler.py", "servekit_worker", "w.pt")}
    files = {step.path: step for step in plan.steps if isinstance(step, WriteFile)}
    assert yaml.safe_load(files[folder / "model-config.yaml"].text)["deviceIds"] == [0]
    assert '"configFile": "model-config.yaml"' in files[folder / "MAR-INF" / "MANIFEST.json"].text
    assert all(file.mode == 0o600 for file in files.values())
