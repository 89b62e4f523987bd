"""Where pip looks for packages on this host, said to uv, which reads none of pip's settings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache

_LINE = re.compile(r"(?:[\w:]+\.)?([\w-]+)='(.*)'")


def for_uv() -> tuple[str, ...]:
    """Options of uv for pip's index, further indexes and folders of wheels; the environment wins over files."""
    told = _told()
    argv: list[str] = []
    for key, option in (("index-url", "--index-url"), ("extra-index-url", "--extra-index-url")):
        argv += [word for url in told.get(key, "").split() for word in (option, url)]
    argv += [word for place in told.get("find-links", "").split() for word in ("--find-links", place)]
    if told.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        argv.append("--no-index")
    # pip takes the best version of all indexes; uv's own default is the first index that knows the name.
    return (*argv, "--index-strategy", "unsafe-best-match")


def env() -> dict[str, str]:
    """Variables for a child process: pip's certificate, where it has one of its own."""
    certificate = _told().get("cert")
    return {"SSL_CERT_FILE": certificate} if certificate and "SSL_CERT_FILE" not in os.environ else {}


def _told() -> dict[str, str]:
    named = {
        key.removeprefix("PIP_").lower().replace("_", "-"): value
        for key, value in os.environ.items()
        if key.startswith("PIP_")
    }
    return {**_files(), **named}


@cache
def _files() -> dict[str, str]:
    """What pip's configuration files say, user's over global's; {} where pip does not answer."""
    argv = (sys.executable, "-m", "pip", "config", "list")
    quiet = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60, env=quiet)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = (_LINE.fullmatch(line.strip()) for line in done.stdout.splitlines())
    return {match[1]: match[2].replace("\\n", " ").strip() for match in found if match}
