"""What the gateway reads from the annotated services: their HTTP routes and serialized descriptors.

Both come from the generated stubs at start, so that they cannot drift from the proto files.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Final, NamedTuple

from google.api import annotations_pb2, http_pb2
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import FileDescriptor, MethodDescriptor

from pagemesh.v1 import anthropic_pb2, console_pb2, openai_pb2

SERVICES: Final = (
    openai_pb2.DESCRIPTOR.services_by_name["OpenAI"],
    console_pb2.DESCRIPTOR.services_by_name["Console"],
    anthropic_pb2.DESCRIPTOR.services_by_name["Anthropic"],
)
"""All of whose RPCs are routes."""


class HttpRoute(NamedTuple):
    """One annotated RPC."""

    method: str
    """HTTP method, for example "POST"."""

    path: str
    """Path, or its fixed beginning when it ends in a variable."""

    is_prefix: bool
    """Whether anything may follow `path`."""


def http_routes() -> list[HttpRoute]:
    """Routes of the services in the order of the proto files, exact ones before prefixes."""
    rpcs = [rpc for service in SERVICES for rpc in service.methods]
    # Several paths may have one beginning.
    routes = dict.fromkeys(route for rpc in rpcs for route in _routes_of(rpc))
    return sorted(routes, key=lambda route: route.is_prefix)


def _routes_of(rpc: MethodDescriptor) -> Iterator[HttpRoute]:
    # The stubs of the annotations do not know that they extend the options of methods.
    first: http_pb2.HttpRule = rpc.GetOptions().Extensions[annotations_pb2.http]  # type: ignore[index]
    for rule in (first, *first.additional_bindings):
        kind = rule.WhichOneof("pattern")
        if kind is None:
            raise ValueError(f"{rpc.full_name} has no google.api.http annotation")
        path, variable, _ = getattr(rule, kind).partition("{")
        yield HttpRoute(kind.upper(), path, is_prefix=bool(variable))


def encoded_descriptors() -> str:
    """The services' files and all that they import as a base64 `FileDescriptorSet`."""
    ordered: dict[str, FileDescriptor] = {}

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        ordered.setdefault(file.name, file)

    for service in SERVICES:
        add(service.file)
    files = descriptor_pb2.FileDescriptorSet()
    for file in ordered.values():
        file.CopyToProto(files.file.add())
    return base64.b64encode(files.SerializeToString()).decode()
