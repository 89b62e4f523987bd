from __future__ import annotations

import dataclasses
from pathlib import Path

import properties_reader
import pytest
from golden_files import Golden
from hypothesis import example, given
from hypothesis import strategies as st
from nouns import HOST, at_home, deployment, gpu, served

from servekit.backends.docker import INSIDE
from servekit.domain.deployment import Deployment
from servekit.domain.server import Ports, ServerConfig
from servekit.render.config_properties import config_properties, escape

STRANGE = "/srv/ein Ordner/C:\\temp/模型-é-😀/.servekit/deployments/default"
CASES = {
    "cpu": deployment(),
    "two-gpus": deployment(
        served("a", workers=4),
        served("b"),
        gpus=(gpu(1), gpu(3)),
        name="night",
        ports=Ports.block(9100),
        server=ServerConfig("0.0.0.0", 9100, True, 60, 7, 31, 32, 2),
    ),
    "docker": deployment(gpus=(gpu(0),), runtime="docker", inside=INSIDE, server=ServerConfig(auth=False)),
    "strange-path": deployment(inside=at_home(STRANGE), host=at_home(STRANGE)),
}


def read(deployment: Deployment) -> dict[str, str]:
    return properties_reader.read(config_properties(deployment))


@pytest.mark.parametrize("case", CASES)
def test_golden(case: str, golden: Golden) -> None:
    golden(f"config-properties-{case}.txt", config_properties(CASES[case]))


def test_what_the_user_decided_arrives() -> None:
    values = read(CASES["two-gpus"])
    assert values["inference_address"] == "http://0.0.0.0:9100"
    assert values["management_address"] == "http://0.0.0.0:9101"
    assert values["metrics_address"] == "http://0.0.0.0:9102"
    assert (values["grpc_inference_port"], values["grpc_management_port"]) == ("9103", "9104")
    assert values["number_of_gpu"] == "2"
    assert values["load_models"] == "a=a,b=b"
    assert values["token_expiration_min"] == "60"
    assert values["job_queue_size"] == "7"
    assert (values["default_response_timeout"], values["default_startup_timeout"]) == ("31", "32")
    assert values["max_request_size"] == values["max_response_size"] == str(2 * 1024 * 1024)


def test_the_safe_values_are_always_written() -> None:
    for case in CASES.values():
        values = read(case)
        assert values["enable_model_api"] == "false"
        assert values["workflow_store"] == "/proc"
        assert values["install_py_dep_per_model"] == values["enable_envvars_config"] == "false"
        assert values["use_env_allowed_urls"] == "false"
        assert values["grpc_inference_address"] == values["grpc_management_address"] == "127.0.0.1"
        assert values["disable_token_authorization"] == ("false" if case.server.auth else "true")


def test_a_container_listens_everywhere_inside_whatever_is_published() -> None:
    assert read(CASES["docker"])["inference_address"] == "http://0.0.0.0:8080"


def test_ipv6_is_bracketed() -> None:
    assert read(deployment(server=ServerConfig(bind="::1")))["inference_address"] == "http://[::1]:8080"


def test_paths_arrive_whole() -> None:
    values = read(CASES["strange-path"])
    assert values["model_store"] == f"{STRANGE}/models"
    assert read(CASES["cpu"])["model_store"] == f"{HOST.home}/models"


def test_no_key_is_written_twice_and_all_is_ascii() -> None:
    for case in CASES.values():
        text = config_properties(case)
        keys = [line.partition("=")[0] for line in text.splitlines() if line and not line.startswith("#")]
        assert len(keys) == len(set(keys))
        assert text.isascii()


def test_a_deployments_name_cannot_end_the_comment_line() -> None:
    """Names with line feeds are refused by system/deployments.py; the first line is one line here too."""
    first, second = config_properties(dataclasses.replace(CASES["cpu"], name="x-1")).splitlines()[:2]
    assert first.startswith("# ") and "x-1" in first
    assert second == ""


@given(st.text(st.characters(exclude_categories=["Cs"])))
@example(" leading and trailing ")
@example("\t\\u0041\\\r\n\f\x00#!=:")
@example("\\")
@example("😀\uffff\ue000")
def test_a_value_is_read_back(value: str) -> None:
    line = f"key={escape(value)}\n"
    assert line.isascii()
    assert line.count("\n") == 1
    assert properties_reader.read(f"{line}next=1\n") == {"key": value, "next": "1"}


def test_the_reader_knows_the_format() -> None:
    """The reader is our oracle: here against examples of java.util.Properties' own documentation."""
    assert properties_reader.read("Truth = Beauty\n Truth:Beauty\nTruth\t\t\t:Beauty") == {"Truth": "Beauty"}
    text = "fruits    apple, banana, pear, \\\n     cantaloupe, watermelon, \\\n   kiwi, mango\n! no\n # no\ncheeses"
    fruits = "apple, banana, pear, cantaloupe, watermelon, kiwi, mango"
    assert properties_reader.read(text) == {"fruits": fruits, "cheeses": ""}
    assert properties_reader.read("a\\=b\\ c=\\u00e9\\z\\\\n") == {"a=b c": "éz\\n"}


def test_a_relative_path_would_be_seen() -> None:
    assert Path(read(CASES["cpu"])["model_store"]).is_absolute()
