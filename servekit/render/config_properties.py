"""Deployment -> config.properties: every value that matters is written, so that no hidden default decides."""

from __future__ import annotations

import re

from servekit.domain.deployment import Deployment

_MIB = 1024 * 1024

# No process, not even root's, can create a file here: an uploaded workflow has nowhere to land.
# TorchServe 0.12 gates POST /models but not POST /workflows, which downloads and runs code.
CLOSED_WORKFLOW_STORE = "/proc"


def config_properties(deployment: Deployment) -> str:
    """The text of config.properties; the keys are TorchServe 0.12.0's (ConfigManager.java)."""
    server, ports, inside = deployment.server, deployment.ports, deployment.inside
    # Inside a container the server listens on all of the container's interfaces; what the host sees is
    # decided by the published ports.
    bind = server.bind if deployment.runtime == "local" else "0.0.0.0"  # noqa: S104
    host = f"[{bind}]" if ":" in bind else bind
    store = f"{inside.home}/models"
    sections: tuple[tuple[str, tuple[tuple[str, object], ...]], ...] = (
        (
            "Where it listens",
            (
                ("inference_address", f"http://{host}:{ports.inference}"),
                ("management_address", f"http://{host}:{ports.management}"),
                ("metrics_address", f"http://{host}:{ports.metrics}"),
                ("grpc_inference_address", "127.0.0.1"),
                ("grpc_inference_port", ports.grpc_inference),
                ("grpc_management_address", "127.0.0.1"),
                ("grpc_management_port", ports.grpc_management),
            ),
        ),
        (
            "What it serves; workers, deviceIds, batching and timeouts are in each model-config.yaml",
            (
                ("model_store", store),
                ("load_models", ",".join(f"{model.name}={model.name}" for model in deployment.models)),
                ("number_of_gpu", deployment.gpus.count),
                ("default_workers_per_model", 1),
                ("default_response_timeout", server.response_timeout_s),
                ("default_startup_timeout", server.startup_timeout_s),
                ("job_queue_size", server.job_queue_size),
                ("max_request_size", server.max_request_mib * _MIB),
                ("max_response_size", server.max_request_mib * _MIB),
                ("initial_worker_port", 9000),
            ),
        ),
        (
            "Who may ask for what",
            (
                ("disable_token_authorization", not server.auth),
                ("token_expiration_min", server.token_expiration_min),
                ("enable_model_api", False),
                ("allowed_urls", f"file://{re.escape(store)}/.*"),
                ("workflow_store", CLOSED_WORKFLOW_STORE),
                ("install_py_dep_per_model", False),
                ("enable_envvars_config", False),
                ("use_env_allowed_urls", False),
            ),
        ),
        (
            "What it reports; GPU figures come from NVML by servekit, not from TorchServe's collector",
            (
                ("metrics_mode", "prometheus"),
                ("enable_metrics_api", True),
                ("disable_system_metrics", True),
            ),
        ),
    )
    lines = [f"# Written by servekit for the deployment {deployment.name}. Overwritten by every `servekit up`."]
    for title, pairs in sections:
        lines += ["", f"# {title}"]
        lines += [f"{key}={escape(_text(value))}" for key, value in pairs]
    return "\n".join(lines) + "\n"


def escape(value: str) -> str:
    """A value as java.util.Properties reads it back: backslashes doubled, the rest of the world as \\uXXXX."""
    out = []
    for position, char in enumerate(value):
        if char == "\\":
            out.append("\\\\")
        elif char in "\n\r\t\f":
            out.append({"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}[char])
        elif char == " " and position == 0:
            out.append("\\ ")
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be")
            out += [f"\\u{units[i]:02x}{units[i + 1]:02x}" for i in range(0, len(units), 2)]
    return "".join(out)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
