"""The command line: its help, its errors and their exit codes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from servekit import __version__, errors
from servekit.cli.main import COMMANDS, main
from servekit.verbs import init as init_verb

ROOT = Path(__file__).parents[2]
Capture = pytest.CaptureFixture[str]

CODES = {
    errors.ServekitError: 1,
    errors.ConfigError: 3,
    errors.ModelError: 4,
    errors.HostError: 5,
    errors.GpuError: 6,
    errors.ConflictError: 7,
    errors.StartError: 8,
    errors.NotRunningError: 9,
    errors.RequestError: 10,
    errors.SloError: 11,
    errors.StorageError: 12,
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty project; signal handlers are put back, since main() replaces them."""
    monkeypatch.chdir(tmp_path)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(*args: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(args)
    assert isinstance(caught.value.code, int)
    return caught.value.code


def child(*args: str, code: str = "") -> subprocess.CompletedProcess[str]:
    command = ("-c", code) if code else ("-m", "servekit", *args)
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run((sys.executable, *command), env=env, capture_output=True, text=True, timeout=120, check=False)


def test_help_lists_every_command_in_its_group(capsys: Capture) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    positions = [text.index(f"\n{group}:") for group in ("Start", "Serve", "Judge")]
    assert positions == sorted(positions)
    for name, (_, line) in COMMANDS.items():
        assert f"\n  {name} " in text
        assert line[:40] in text
    assert "Examples:" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_examples(name: str, capsys: Capture) -> None:
    assert run(name, "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"Usage: servekit {name}")
    examples = text.partition("Examples:\n")[2]
    assert f"servekit {name}" in examples
    assert run(name, "-h") == 0


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_is_for(name: str) -> None:
    import importlib

    command = importlib.import_module(f"servekit.cli.{name}").command
    assert command.get_short_help_str()
    obvious = {"version", "name", "kind", "runtime", "port"}
    for option in command.params:
        if isinstance(option, click.Option) and option.name not in obvious:
            assert option.help or option.show_default, f"{name} --{option.name}"


def test_version(capsys: Capture) -> None:
    assert run("--version") == 0
    assert __version__ in capsys.readouterr().out


def test_the_codes_are_complete_and_distinct() -> None:
    known = {errors.ServekitError, *errors.ServekitError.__subclasses__()}
    assert {kind: kind.exit_code for kind in known} == CODES
    assert len(set(CODES.values())) == len(CODES)
    assert 2 not in CODES.values(), "2 is click's, for a wrong command line"


@pytest.mark.parametrize("kind", CODES)
def test_each_error_has_its_code_and_its_words(
    kind: type[errors.ServekitError], capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Path) -> None:
        raise kind("it is wrong.", hint="mend it.", detail="the evidence\n")

    monkeypatch.setattr(init_verb, "init", fail)
    assert run("init") == CODES[kind]
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "the evidence\n\nError: it is wrong.\nNext:  mend it.\n"


def test_several_problems_are_one_error() -> None:
    with pytest.raises(errors.GpuError) as caught:
        errors.raise_together(errors.GpuError, ["a.", "b."], hint="h")
    assert (caught.value.message, caught.value.hint) == ("2 problems:\n  - a.\n  - b.", "h")
    errors.raise_together(errors.GpuError, [])


@pytest.mark.parametrize("place", [0, 1])
def test_debug_anywhere_shows_the_traceback(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise errors.StorageError("full")

    monkeypatch.setattr(init_verb, "init", fail)
    args = ["init"]
    args.insert(place, "--debug")
    with pytest.raises(errors.StorageError, match="full"):
        main(args)


def test_debug_in_a_terminal() -> None:
    (Path.cwd() / "servekit.toml").touch()
    quiet, loud = child("init"), child("init", "--debug")
    assert quiet.returncode == 7
    assert "Traceback" not in quiet.stderr
    assert "Traceback" in loud.stderr
    assert "ConflictError" in loud.stderr


def test_an_error_that_is_ours(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Path) -> None:
        raise ZeroDivisionError("x")

    monkeypatch.setattr(init_verb, "init", fail)
    assert run("init") == 1
    text = capsys.readouterr().err
    assert "internal error, please report it: ZeroDivisionError: x" in text
    assert "--debug" in text


def test_an_interruption_is_130(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(init_verb, "init", interrupt)
    assert run("init") == 130
    assert capsys.readouterr().err.strip() == "Interrupted."


@pytest.mark.parametrize(("word", "meant"), [("pakage", "package"), ("statsu", "status"), ("dwon", "down")])
def test_a_misspelt_command(word: str, meant: str, capsys: Capture) -> None:
    assert run(word) == 2
    assert f"Did you mean {meant}?" in capsys.readouterr().err


def test_a_command_that_resembles_nothing(capsys: Capture) -> None:
    assert run("xyzzy") == 2
    assert "No such command 'xyzzy'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "args",
    [
        ("up", "--runtime", "podman"),
        ("up", "--port", "65532"),
        ("package", "w.pt", "--batch-size", "0"),
        ("package", "w.pt", "--channels", "2"),
        ("logs", "-n", "-1"),
        ("predict", "m"),
        ("token", "show", "--kind", "api"),
        ("down", "extra"),
    ],
)
def test_a_wrong_command_line_is_2(args: tuple[str, ...]) -> None:
    assert run(*args) == 2


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        (("status", "--name", "x"), 9, "There is no deployment 'x'"),
        (("down",), 9, "No deployment is up"),
        (("logs",), 9, "No deployment is up"),
        (("predict", "m", "f"), 9, "No deployment is up"),
        (("token", "show"), 9, "No deployment is up"),
        (("package",), 3, "Nothing to package"),
        (("package", "w.pt"), 3, "2 problems"),
        (("package", "--name", "m", "--handler", "tensor", "--crop", "1", "--input-shape", "a"), 3, "2 problems"),
        (("package", "--name", "m", "--handler", "h.py", "--model-arg", "x"), 3, "write KEY=VALUE"),
        (("package", "w.pt", "--name", "m", "--handler", "tensor"), 4, "w.pt does not exist"),
        (("up", "m", "--dry-run", "--runtime", "local"), 4, "there is no"),
        (("up", "--name", "../x", "--dry-run"), 3, "cannot be a deployment's name"),
    ],
)
def test_in_an_empty_project(args: tuple[str, ...], code: int, told: str, capsys: Capture, tmp_path: Path) -> None:
    assert run(*args) == code
    captured = capsys.readouterr()
    assert told in captured.err
    assert captured.out == ""
    left = [path.name for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".lock"]
    assert left == []


def test_status_of_nothing(capsys: Capture) -> None:
    assert run("status") == 0
    assert capsys.readouterr().out == "No deployment is up in this project.\n"
    assert run("status", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []


def test_init_prints_or_writes(capsys: Capture, tmp_path: Path) -> None:
    assert run("init", "--print") == 0
    printed = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    assert run("init") == 0
    assert capsys.readouterr().out == "wrote servekit.toml\nwrote .gitignore\n"
    assert (tmp_path / "servekit.toml").read_text() == printed
    assert run("init") == 7


def test_a_reader_that_leaves_early() -> None:
    script = f"{sys.executable} -m servekit init --print | head -1"
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(("sh", "-c", script), env=env, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.startswith("# servekit.toml")
    assert done.stderr == ""


HEAVY = ("torch", "ts", "locust", "gevent", "requests", "yaml", "jinja2", "numpy", "psutil", "pynvml", "PIL")


@pytest.mark.parametrize("args", [["--help"], ["--version"], ["--no-such-option"]])
def test_nothing_heavy_is_imported_to_say_how_to_use_it(args: list[str]) -> None:
    code = f"""
import json, sys
from servekit.cli.main import main
try:
    main({args!r})
except SystemExit:
    print(json.dumps(sorted(name for name in sys.modules if "." not in name)), file=sys.stderr)
"""
    done = child(code=code)
    assert set(json.loads(done.stderr.splitlines()[-1])) & set(HEAVY) == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_imports_what_only_a_child_process_may(name: str) -> None:
    done = child(code=f"import sys, servekit.cli.{name}; print(*sys.modules)")
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) & {"torch", "ts", "locust", "gevent"} == set()


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("up", "--gpus", ""), 3),
        (("up", "--gpus", "0-1"), 3),
        (("package", "--name", "../x", "--handler", "h.py"), 3),
        (("package", "--name", "m", "--handler", "h.py", "--labels", ""), 3),
        (("package", "--name", "", "--handler", "h.py"), 3),
        (("package", "w.pt", "--name", "m", "--handler", "image", "--mean", "nan,0,0", "--model", "m.py:M"), 3),
        (("package", "w.pt", "--name", "m", "--handler", "image", "--resize", "99999999"), 2),
        (("package", "w.pt", "--name", "m", "--handler", "image", "--top-k", "99999999"), 2),
        (("predict", "m", "f", "--content-type", "a\nb"), 2),
        (("loadtest", "--model", "m", "--payload", "f", "--slo", ""), 3),
        (("loadtest", "--model", "m", "--payload", "f", "--duration", "abc"), 2),
    ],
)
def test_words_that_mean_nothing(args: tuple[str, ...], code: int, capsys: Capture) -> None:
    assert run(*args) == code
    said = capsys.readouterr().err
    assert "internal error" not in said
    assert "Traceback" not in said
