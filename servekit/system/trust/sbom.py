"""A software bill of materials: CycloneDX 1.6 JSON of what a model needs, the same for the same lock."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

from servekit.domain.lock import Lock
from servekit.domain.lock import render as lock_text
from servekit.errors import HostError

_FILE = "servekit:file:sha256"
_NAMESPACE = uuid.UUID("6f1c5f0e-4d0b-5c0e-9f5b-7a9d2f1d3c11")


def render(lock: Lock, model: str, version: str) -> bytes:
    """The SBOM of ``model``: itself as the root, each locked package with its purl and its files' SHA-256.

    It has no time and a serial number made from its content. HostError without cyclonedx-python-lib.
    """
    try:
        from cyclonedx.model import HashAlgorithm, HashType, Property
        from cyclonedx.model.bom import Bom
        from cyclonedx.model.component import Component, ComponentType
        from cyclonedx.output import make_outputter
        from cyclonedx.schema import OutputFormat, SchemaVersion
        from packageurl import PackageURL
    except ImportError as error:
        raise HostError(
            "A bill of materials needs the package cyclonedx-python-lib.",
            hint="Install it: pip install 'servekit[trust]'",
        ) from error
    root = Component(
        name=model, version=version, type=ComponentType.MACHINE_LEARNING_MODEL, bom_ref=f"model:{model}@{version}"
    )
    bom = Bom()
    bom.metadata.component = root
    parts = []
    for package in lock.packages:
        purl = PackageURL("pypi", name=package.name, version=package.version)
        digests = [digest.removeprefix("sha256:") for digest in package.hashes]
        # A component's hash is that of one file; of several files any may be installed.
        single = [HashType(alg=HashAlgorithm.SHA_256, content=digests[0])] if len(digests) == 1 else []
        several = [Property(name=_FILE, value=digest) for digest in digests] if len(digests) > 1 else []
        part = Component(
            name=package.name,
            version=package.version,
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=str(purl),
            hashes=single,
            properties=several,
        )
        bom.components.add(part)
        parts.append(part)
    bom.register_dependency(root, parts)
    text = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string()
    return _steady(json.loads(text), f"{model}=={version}\n{lock_text(lock)}")


def _steady(data: dict[str, Any], content: str) -> bytes:
    """Without the moment and the chance in it."""
    data["metadata"].pop("timestamp", None)
    digest = hashlib.sha256(content.encode()).hexdigest()
    data["serialNumber"] = uuid.uuid5(_NAMESPACE, digest).urn
    return (json.dumps(data, indent=1, sort_keys=True) + "\n").encode()
