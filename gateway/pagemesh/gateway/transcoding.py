"""What the gateway reads from the `OpenAI` service: its HTTP routes and its serialized descriptors.

Both come from the generated stubs at start, so that they cannot drift from the proto files.
"""

from __future__ import annotations

import base64
from typing import NamedTuple

from google.api import annotations_pb2, http_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor

from pagemesh.v1 import openai_pb2

SERVICE = openai_pb2.DESCRIPTOR.services_by_name["OpenAI"]


class HttpRoute(NamedTuple):
    """One annotated RPC."""

    method: str
    """HTTP method, for example "POST"."""

    path: str
    """Path, or its fixed beginning when it ends in a variable."""

    is_prefix: bool
    """Whether anything may follow `path`."""


def http_routes() -> list[HttpRoute]:
    """Routes of the `OpenAI` service in the order of the proto file."""
    routes = []
    for rpc in SERVICE.methods:
        # The stubs of the annotations do not know that they extend the options of methods.
        rule: http_pb2.HttpRule = rpc.GetOptions().Extensions[annotations_pb2.http]  # type: ignore[index]
        kind = rule.WhichOneof("pattern")
        if kind is None:
            raise ValueError(f"{rpc.full_name} has no google.api.http annotation")
        path, variable, _ = getattr(rule, kind).partition("{")
        routes.append(HttpRoute(kind.upper(), path, is_prefix=bool(variable)))
    return routes


def encoded_descriptors() -> str:
    """The service's file and all that it imports as a base64 `FileDescriptorSet`."""
    ordered: dict[str, FileDescriptor] = {}

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        ordered.setdefault(file.name, file)

    add(openai_pb2.DESCRIPTOR)
    files = descriptor_pb2.FileDescriptorSet()
    for file in ordered.values():
        file.CopyToProto(files.file.add())
    return base64.b64encode(files.SerializeToString()).decode()
