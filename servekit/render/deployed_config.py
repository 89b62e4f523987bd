"""ServedModel -> the model-config.yaml and MANIFEST of this deployment.

TorchServe reads deviceIds, workers, timeouts and queue only from the YAML inside a model, and an archive
is never rewritten: a deployment therefore gives each model a folder with these two files of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from servekit.domain.deployment import Deployment, ServedModel

CONFIG_FILE = "model-config.yaml"
# The schema of the handler's section from which on it takes a reason beside a precision.
_TELLS_WHY = 2


def deployed_config(model: ServedModel, deployment: Deployment) -> dict[str, Any]:
    """The archive's own configuration with everything that TorchServe decides by written over it."""
    server, gpus = deployment.server, deployment.gpus
    config: dict[str, Any] = {
        **model.config,
        "minWorkers": model.workers,
        "maxWorkers": model.workers,
        "batchSize": model.batch_size,
        # 0 does not mean "no delay" to TorchServe but its default of 100 ms.
        "maxBatchDelay": max(1, model.max_batch_delay_ms),
        "responseTimeout": server.response_timeout_s,
        "startupTimeout": server.startup_timeout_s,
        "jobQueueSize": server.job_queue_size,
        "deviceType": "gpu" if gpus.count else "cpu",
    }
    config.pop("deviceIds", None)
    if gpus.count:
        config["deviceIds"] = list(gpus.ordinals)
    if isinstance(model.config.get("handler"), Mapping):
        config["handler"] = {**model.config["handler"], "threads": model.threads, **_precision(model)}
    return config


def _precision(model: ServedModel) -> dict[str, Any]:
    """What was decided for the GPUs at hand. The reason only where the archive's own runtime takes one."""
    if model.precision is None:
        return {}
    schema = model.config["handler"].get("schema")
    told = isinstance(schema, int) and schema >= _TELLS_WHY
    return {"precision": model.precision, **({"precision_reason": model.precision_reason} if told else {})}


def deployed_manifest(model: ServedModel) -> dict[str, Any]:
    """The archive's manifest, pointing at the deployment's configuration."""
    inner = dict(model.manifest.get("model", {}))
    inner["configFile"] = CONFIG_FILE
    # `python` runs under the server's own interpreter; `python3` would take whichever is on the PATH.
    return {**model.manifest, "runtime": "python", "model": inner}
