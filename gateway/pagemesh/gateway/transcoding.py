"""What the gateway reads from the annotated services: their HTTP routes and serialized descriptors.

Both come from the generated stubs at start, so that they cannot drift from the proto files.
"""

from __future__ import annotations

import base64
import re
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

_VARIABLE = re.compile(r"\{[a-z_.]+(?:=(\*\*?))?\}")


class HttpRoute(NamedTuple):
    """One path of the annotated RPCs."""

    path: str
    """Path as in the annotation, for example "/v1/models/{model=**}"."""

    methods: tuple[str, ...]
    """HTTP methods, for example "POST"."""

    @property
    def regex(self) -> str | None:
        """Matches the paths that are meant; None when `path` has no variable."""
        if "{" not in self.path:
            return None
        pieces = []
        end = 0
        for variable in _VARIABLE.finditer(self.path):
            pieces.append(re.escape(self.path[end : variable.start()]))
            pieces.append(".+" if variable[1] == "**" else "[^/]+")
            end = variable.end()
        rest = self.path[end:]
        if not pieces or "{" in rest:
            raise ValueError(f"the route {self.path} has a variable that is not understood")
        return "".join(pieces) + re.escape(rest)


def http_routes() -> list[HttpRoute]:
    """Routes of the services in the order of the proto files, exact ones before those with variables."""
    methods: dict[str, list[str]] = {}
    for service in SERVICES:
        for rpc in service.methods:
            for method, path in _bindings_of(rpc):
                methods.setdefault(path, []).append(method)
    routes = [HttpRoute(path, tuple(names)) for path, names in methods.items()]
    return sorted(routes, key=lambda route: route.regex is not None)


def _bindings_of(rpc: MethodDescriptor) -> Iterator[tuple[str, str]]:
    # The stubs of the annotations do not know that they extend the options of methods.
    first: http_pb2.HttpRule = rpc.GetOptions().Extensions[annotations_pb2.http]  # type: ignore[index]
    for rule in (first, *first.additional_bindings):
        kind = rule.WhichOneof("pattern")
        if kind is None:
            raise ValueError(f"{rpc.full_name} has no google.api.http annotation")
        yield kind.upper(), getattr(rule, kind)


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
