"""The deployment's own model-config.yaml and manifest."""

from __future__ import annotations

import copy
import json

import pytest
import yaml
from golden_files import Golden
from nouns import deployment, gpu, served

from servekit.domain.server import ServerConfig
from servekit.render.deployed_config import deployed_config, deployed_manifest

TWO_GPUS = (gpu(1), gpu(3))


def test_golden(golden: Golden) -> None:
    model = served(workers=2)
    config = deployed_config(model, deployment(model, gpus=TWO_GPUS))
    golden("deployed-model-config.txt", yaml.safe_dump(config, sort_keys=False))
    golden("deployed-manifest.txt", json.dumps(deployed_manifest(model), indent=2) + "\n")


def test_the_server_gets_ordinals_not_indexes() -> None:
    config = deployed_config(served(workers=4), deployment(gpus=TWO_GPUS))
    assert config["deviceIds"] == [0, 1]
    assert config["deviceType"] == "gpu"
    assert (config["minWorkers"], config["maxWorkers"]) == (4, 4)


def test_the_cpu_gets_no_devices_even_when_the_archive_names_some() -> None:
    model = served(config={"deviceIds": [0, 1], "deviceType": "gpu", "torch_compile": {"enable": False}})
    config = deployed_config(model, deployment(model))
    assert config["deviceType"] == "cpu"
    assert "deviceIds" not in config
    assert config["torch_compile"] == {"enable": False}, "what is not ours stays"
    assert "handler" not in config, "a foreign archive gets no section of ours"


def test_values_of_the_deployment_win() -> None:
    model = served(batch_size=32, max_batch_delay_ms=0, threads=6)
    server = ServerConfig(response_timeout_s=5, startup_timeout_s=6, job_queue_size=7)
    config = deployed_config(model, deployment(model, server=server))
    assert config["batchSize"] == 32
    assert config["maxBatchDelay"] == 1, "0 would mean 100 ms to TorchServe"
    assert (config["responseTimeout"], config["startupTimeout"], config["jobQueueSize"]) == (5, 6, 7)
    assert config["handler"] == {"schema": 1, "kind": "image", "precision": "auto", "threads": 6}


@pytest.mark.parametrize("gpus", [(), TWO_GPUS])
def test_the_archives_own_mappings_are_left_alone(gpus: tuple[object, ...]) -> None:
    model = served()
    before = copy.deepcopy((model.config, model.manifest))
    deployed_config(model, deployment(model, gpus=gpus))
    deployed_manifest(model)
    assert (model.config, model.manifest) == before


def test_the_manifest_points_at_the_deployments_configuration() -> None:
    manifest = deployed_manifest(served())
    assert manifest["runtime"] == "python", "python3 would be whichever is on the PATH"
    assert manifest["model"]["configFile"] == "model-config.yaml"
    assert manifest["model"]["handler"] == "image_handler.py"
