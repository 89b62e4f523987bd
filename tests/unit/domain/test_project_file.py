"""servekit.toml: what is refused, in which words, and on which line."""

from __future__ import annotations

import pytest
from toml_keys import TABLES

import servekit_worker.options
from servekit.domain.model import PRECISIONS, ImageOptions, ModelSpec, TensorOptions, TextOptions
from servekit.domain.project import DTYPES, Project, parse_project
from servekit.domain.server import ServerConfig
from servekit.errors import ConfigError

IMAGE_MODEL = 'schema = 1\n[[models]]\nname = "a"\nhandler = "image"\n'


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_project(text)
    return caught.value.message


def test_the_smallest() -> None:
    assert parse_project("schema = 1") == Project()


def test_everything_arrives_as_nouns() -> None:
    project = parse_project("""
schema = 1
[[models]]
name = "a"
version = "2"
weights = "w.pt"
model = "m.py:Net"
model_args = { width = 32, deep = [1, 2] }
handler = "image"
labels = "l.txt"
precision = "bf16"
batch_size = 3
max_batch_delay_ms = 9
workers = 2
extra_files = ["x", "y/"]
example = "e.png"
format = "state_dict"
convert = false
weights_key = "ema"
adapter = "lora/"
keep_fp32 = ["head.*"]
requirements = "r.txt"
card = "card.md"
meta = { git_commit = "abc", accuracy = 0.5 }
tolerance = { bf16 = 0.03 }
[models.image]
resize = 32
crop = 28
channels = 1
mean = [0]
std = [0.5]
top_k = 2
[[models]]
name = "b"
handler = "mine.py"
[models.tensor]
input_shape = [1, 2]
dtype = "int64"
[[models]]
name = "t"
handler = "text"
example = ["a.txt", "b.txt"]
[models.text]
task = "embed"
max_length = 128
normalize = true
top_k = 2
[server]
bind = "10.0.0.1"
port = 9000
job_queue_size = 7
[runtime]
backend = "docker"
gpus = "0,1"
image = "i:1"
""")
    assert project.model("a") == ModelSpec(
        name="a",
        version="2",
        weights="w.pt",
        model="m.py:Net",
        model_args={"width": 32, "deep": [1, 2]},
        handler="image",
        labels="l.txt",
        precision="bf16",
        batch_size=3,
        max_batch_delay_ms=9,
        workers=2,
        extra_files=("x", "y/"),
        examples=("e.png",),
        format="state_dict",
        convert=False,
        weights_key="ema",
        adapter="lora/",
        keep_fp32=("head.*",),
        requirements="r.txt",
        card="card.md",
        meta={"git_commit": "abc", "accuracy": "0.5"},
        tolerance={"bf16": 0.03},
        image=ImageOptions(32, 28, 1, (0,), (0.5,), 2),
    )
    assert project.model("b") == ModelSpec("b", handler="mine.py", tensor=TensorOptions((1, 2), "int64"))
    text = TextOptions("embed", 128, True, 2)
    assert project.model("t") == ModelSpec("t", handler="text", examples=("a.txt", "b.txt"), text=text)
    assert project.model("c") is None
    assert project.server == ServerConfig(bind="10.0.0.1", port=9000, job_queue_size=7)
    assert (project.runtime.backend, project.runtime.gpus, project.runtime.image) == ("docker", "0,1", "i:1")


@pytest.mark.parametrize(("table", "key"), [(table, key) for table, keys in TABLES.items() for key in keys])
def test_an_unknown_key_is_answered_with_the_known_one(table: str, key: str) -> None:
    wrong = key[0] + key[2:]
    header = "" if table == "models" else f"[{table}]\n"
    text = f"{IMAGE_MODEL}{header}{wrong} = 1\n"
    told = refused(text)
    assert f"servekit.toml:{text.count(chr(10))}: unknown key {table}.{wrong}. Did you mean {key}?" in told


def test_unknown_keys_that_resemble_nothing_list_the_known() -> None:
    assert "unknown key runtime.zzz. Known here: backend, gpus, image." in refused("schema = 1\n[runtime]\nzzz = 1\n")
    assert "servekit.toml:2: unknown key model. Did you mean models?" in refused("schema = 1\n[[model]]\nname='a'\n")


@pytest.mark.parametrize(
    ("table", "line", "told"),
    [
        ("models", "batch_size = true", "must be a whole number from 1 to 4096, not True."),
        ("models", "batch_size = 0", "must be a whole number from 1 to 4096, not 0."),
        ("models", 'batch_size = "8"', "must be a whole number from 1 to 4096, not '8'."),
        ("models", "batch_size = 8.0", "must be a whole number from 1 to 4096, not 8.0."),
        ("models", "workers = 257", "must be a whole number from 1 to 256, not 257."),
        ("models", "max_batch_delay_ms = 0", "must be a whole number"),
        ("models", 'weights = ""', "must be a text, not ''."),
        ("models", "version = 1.0", "must be a text, not 1.0."),
        ("models", "example = []", "must be a path or a list of paths, not []."),
        ("models", "meta = { a = [1] }", "must be a table of texts and numbers"),
        ("models", "tolerance = { bf16 = nan }", "must be a table of numbers"),
        ("models", "keep_fp32 = [1]", "must be a list of patterns of module names, not [1]."),
        ("models", 'extra_files = "a"', "must be a list of paths, not 'a'."),
        ("models", 'extra_files = ["a", 1]', "must be a list of paths"),
        ("models", "model_args = [1]", "must be a table of keyword arguments"),
        ("models", "image = 1", "must be a table, [models.image], not 1."),
        ("models.image", "channels = true", "must be 1 or 3, not True."),
        ("models.image", "channels = 2", "must be 1 or 3, not 2."),
        ("models.image", "mean = []", "must be a list of numbers, one a channel, not []."),
        ("models.image", "mean = [true, 0, 0]", "must be a list of numbers, one a channel"),
        ("models.image", "mean = [nan, 0, 0]", "must be a list of numbers, one a channel"),
        ("models.image", "std = [0.0, 1, 1]", "must be a list of numbers above 0"),
        ("models.image", "std = [inf, 1, 1]", "must be a list of numbers above 0"),
        ("models.image", "crop = 16385", "must be a whole number from 1 to 16384"),
        ("models.image", "top_k = 0", "must be a whole number"),
        ("server", "port = 65532", "must be a whole number from 1 to 65531, not 65532."),
        ("server", 'auth = "yes"', "must be true or false, not 'yes'."),
        ("server", "bind = 127", "must be a text, not 127."),
        ("server", "max_request_mib = 2048", "must be a whole number from 1 to 2047"),
        ("runtime", "gpus = 0", "must be a text, not 0."),
        ("runtime", 'backend = "podman"', "must be one of auto, docker, local, not 'podman'."),
    ],
)
def test_wrong_values(table: str, line: str, told: str) -> None:
    header = "" if table == "models" else f"[{table}]\n"
    text = f"{IMAGE_MODEL}{header}{line}\n"
    key = line.partition(" ")[0]
    assert f"servekit.toml:{text.count(chr(10))}: {table}.{key} {told}" in refused(text)


@pytest.mark.parametrize("line", ["input_shape = [0]", "input_shape = 3", "input_shape = [1.5]", 'dtype = "float31"'])
def test_wrong_tensor_values(line: str) -> None:
    text = f'schema = 1\n[[models]]\nname = "a"\nhandler = "tensor"\n[models.tensor]\n{line}\n'
    assert f"servekit.toml:6: models.tensor.{line.partition(' ')[0]} must be " in refused(text)


def test_the_last_port_of_the_last_block() -> None:
    assert parse_project("schema = 1\n[server]\nport = 65531\n").server.port == 65531


def test_all_problems_at_once_each_on_its_line() -> None:
    told = refused("""\
schema = 2
[[models]]
name = "token"
handler = "image"
precision = "fp8"
[models.image]
crop = 300
[[models]]
weights = "w.pt"
[server]
bind = "0.0.0.0"
auth = false
[runtime]
gpu = "0"
""")
    assert told.startswith("8 problems:\n")
    for line, words in (
        (1, "schema must be "),
        (3, "'token' cannot be a model name"),
        (5, "precision 'fp8' is unknown"),
        (7, "image.crop = 300 is larger than image.resize = 256."),
        (8, "this model has no name."),
        (8, "this model has no handler."),
        (12, "server.auth = false with server.bind = '0.0.0.0'"),
        (14, "unknown key runtime.gpu. Did you mean gpus?"),
    ):
        assert f"  - servekit.toml:{line}: {words}" in told


def test_the_second_of_two_image_tables() -> None:
    text = IMAGE_MODEL + "[models.image]\ncrop = 8\nresize = 8\n"
    text += '[[models]]\nname = "b"\nhandler = "image"\n[models.image]\nresize = 8\ncrop = 9\n'
    assert refused(text) == "servekit.toml:13: image.crop = 9 is larger than image.resize = 8."


def test_the_line_after_a_multi_line_string() -> None:
    text = IMAGE_MODEL + 'labels = """\nbatch_size = 0\n"""\nbatch_size = 0\n'
    assert refused(text).startswith("servekit.toml:8: models.batch_size must be")


def test_keys_of_inline_tables_stand_where_the_table_stands() -> None:
    text = 'schema = 1\n\nmodels = [{ name = "a", handler = "tensor", batch_size = 0 }]\n'
    assert refused(text).startswith("servekit.toml:3: models.batch_size must be")
    text = 'schema = 1\n[[models]]\nname = "a"\nhandler = "tensor"\ntensor = { dtyp = "int8" }\n'
    assert refused(text) == "servekit.toml:5: unknown key models.tensor.dtyp. Did you mean dtype?"


def test_models_that_are_no_tables() -> None:
    assert "servekit.toml:2: models must be tables, [[models]], not 1." in refused("schema = 1\nmodels = [1]\n")
    assert "servekit.toml:2: models must be an array of tables" in refused("schema = 1\n[models]\nname = 'a'\n")


def test_the_schema() -> None:
    assert refused("") == "servekit.toml:1: schema is missing; write `schema = 1` at the top."
    assert refused("\nschema = 2").startswith("servekit.toml:2: schema must be")
    assert refused("\nschema = true").startswith("servekit.toml:2: schema must be")


def test_two_models_of_one_name() -> None:
    second = '[[models]]\nname = "a"\nhandler = "tensor"\n'
    assert refused(IMAGE_MODEL + second) == "servekit.toml:6: two models are called 'a'."


def test_the_other_handlers_table_would_have_no_effect() -> None:
    told = refused(IMAGE_MODEL + "[models.tensor]\n")
    assert told == "servekit.toml:5: models.tensor has no effect with handler = 'image'."


@pytest.mark.parametrize(
    ("bind", "open_"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("0.0.0.0", False), ("::", False), ("10.1.2.3", False)],
)
def test_without_tokens_only_on_loopback(bind: str, open_: bool) -> None:
    text = f'schema = 1\n[server]\nbind = "{bind}"\nauth = false\n'
    if open_:
        assert parse_project(text).server.auth is False
    else:
        assert refused(text).startswith("servekit.toml:4: server.auth = false")


def test_channels_decide_how_many_numbers() -> None:
    told = refused(IMAGE_MODEL + "[models.image]\nchannels = 1\nstd = [1, 1]\n")
    assert "servekit.toml:5: image.mean has 3 numbers for image.channels = 1." in told
    assert "servekit.toml:7: image.std has 2 numbers for image.channels = 1." in told


def test_a_wrong_list_is_one_problem_and_no_default_stands_in_for_it() -> None:
    assert "problems" not in refused(IMAGE_MODEL + "[models.image]\nchannels = 1\nmean = [0]\nstd = [0.0]\n")


def test_a_file_nested_without_end() -> None:
    assert refused("a = " + "[" * 3000) == "servekit.toml is nested too deeply."


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("tolerance = { fp8 = 0.1 }", "tolerance 'fp8' is unknown: choose from fp32, tf32, bf16, fp16, top1."),
        ("tolerance = { bf16 = 0.0 }", "tolerance bf16 = 0 must be above 0 and at most 1."),
        ("tolerance = { top1 = 99.5 }", "tolerance top1 = 99.5 must be above 0 and at most 1."),
    ],
)
def test_tolerances_that_mean_nothing(line: str, told: str) -> None:
    assert refused(f"{IMAGE_MODEL}{line}\n") == f"servekit.toml:5: {told}"


def test_what_is_not_toml_keeps_tomllibs_place() -> None:
    assert "at line 2, column 5" in refused("schema = 1\nkey [\n")


def test_the_archives_runtime_takes_every_word_that_is_accepted_here() -> None:
    assert set(DTYPES) == set(servekit_worker.options.DTYPES)
    assert PRECISIONS == servekit_worker.options.PRECISIONS
