"""Whether an object is what an API server would take: strict schemas of Kubernetes, and small ones of custom resources.

`kubernetes_validate.validate` reads a file of megabytes for every object; here each is read once.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes_validate.utils import all_versions, schema_contents
from referencing import Registry, Resource

VERSIONS = tuple(f"1.{minor}" for minor in range(28, 38))
CUSTOM = Path(__file__).parent / "custom_resources.yaml"


@cache
def _definitions(version: str) -> tuple[str, Resource[Any]]:
    # Patch releases are listed; the folder of a minor release is that of its newest one.
    [*_, newest] = [
        each for each in all_versions() if each == version or each.startswith(f"{version}.")
    ]
    folder = f"kubernetes-json-schema/v{newest}-local-strict"
    return folder, Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version))


@cache
def _validator(version: str, kind: str, api_version: str) -> jsonschema.Draft202012Validator:
    folder, definitions = _definitions(version)
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    schema = schema_contents(f"{folder}/{kind.lower()}-{group}.json", version)
    registry: Registry[Any] = definitions @ (Resource.from_contents(schema) @ Registry())
    return jsonschema.Draft202012Validator(schema, registry=registry)


@cache
def _custom_validators() -> dict[tuple[str, str], jsonschema.Draft202012Validator]:
    loaded = yaml.safe_load(CUSTOM.read_text(encoding="utf-8"))
    return {
        (each["apiVersion"], kind): jsonschema.Draft202012Validator(
            {"$defs": loaded["definitions"], **schema}
        )
        for each in loaded["groups"]
        for kind, schema in each["kinds"].items()
    }


def is_custom(found: dict[str, Any]) -> bool:
    return (found["apiVersion"], found["kind"]) in _custom_validators()


def complaints(found: dict[str, Any], version: str) -> list[str]:
    """What a server of that version would refuse, empty when nothing."""
    name = f"{found['kind']} {found['metadata']['name']}"
    validator = _custom_validators().get((found["apiVersion"], found["kind"])) or _validator(
        version, found["kind"], found["apiVersion"]
    )
    return [f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(found)]
