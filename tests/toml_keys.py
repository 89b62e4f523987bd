"""Every key of servekit.toml by its table, written down a second time on purpose."""

from __future__ import annotations

MODEL_KEYS = (
    *("name", "version", "weights", "model", "model_args", "handler", "labels", "precision", "batch_size"),
    *("max_batch_delay_ms", "workers", "extra_files", "example", "image", "tensor", "text"),
    *("format", "convert", "weights_key", "adapter", "keep_fp32", "requirements", "card", "meta", "tolerance"),
)
TABLES: dict[str, tuple[str, ...]] = {
    "models": MODEL_KEYS,
    "models.image": ("resize", "crop", "channels", "mean", "std", "top_k"),
    "models.tensor": ("input_shape", "dtype"),
    "models.text": ("task", "max_length", "normalize", "top_k"),
    "server": (
        *("bind", "port", "auth", "token_expiration_min", "job_queue_size", "response_timeout_s"),
        *("startup_timeout_s", "max_request_mib"),
    ),
    "runtime": ("backend", "gpus", "image"),
}
