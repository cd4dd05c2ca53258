"""The services and messages, from what protoc reads in protos/, comments included."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
    ServiceDescriptorProto,
)

from pagemesh.identity.roles import CALLERS
from tools.docsite.cells import table
from tools.protos import PROTOS, protoc

_OURS: Final = ".pagemesh.v1."
# Numbers of the fields of descriptors, of which the paths of comments are made.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED_MESSAGES, _NESTED_ENUMS, _METHODS, _VALUES = 2, 3, 4, 2, 2

Place = tuple[int, ...]


class Proto(NamedTuple):
    """One file with its comments by place."""

    file: FileDescriptorProto
    comments: dict[Place, str]

    @property
    def name(self) -> str:
        """The file's, without folder and ending."""
        return Path(self.file.name).stem


@cache
def protos() -> tuple[Proto, ...]:
    """All files of pagemesh."""
    with tempfile.TemporaryDirectory() as folder:
        compiled = Path(folder, "all.binpb")
        protoc(
            *(f"-I{PROTOS}", "--include_source_info", f"--descriptor_set_out={compiled}"),
            *map(str, sorted(PROTOS.rglob("*.proto"))),
        )
        read = FileDescriptorSet.FromString(compiled.read_bytes())
    return tuple(Proto(file, _comments(file)) for file in read.file)


def _comments(file: FileDescriptorProto) -> dict[Place, str]:
    return {
        tuple(location.path): " ".join(location.leading_comments.split())
        for location in file.source_code_info.location
        if location.leading_comments
    }


def index_markdown() -> str:
    """The services, each with a link to its page."""
    rows = [
        (
            f"[{service.name}](grpc/{proto.name}.md#{service.name.lower()})",
            proto.comments.get((_SERVICES, number), ""),
            ", ".join(f"`{method.name}`" for method in service.method),
        )
        for proto in protos()
        for number, service in enumerate(proto.file.service)
    ]
    return table(("service", "", "RPCs"), rows)


def pages() -> dict[str, str]:
    """A page for every file, by the name of the file."""
    return {proto.name: _page(proto) for proto in protos()}


def _page(proto: Proto) -> str:
    source = f"../../../protos/{proto.file.name}"
    parts = [f"# {proto.name}", f"Made from [{proto.file.name}]({source})."]
    for number, service in enumerate(proto.file.service):
        parts += _service(service, (_SERVICES, number), proto)
    for name, message, place in _messages(proto.file):
        parts += [f"### {name}", proto.comments.get(place, ""), _fields(message, place, proto)]
    for name, kind, place in _enums(proto.file):
        parts += [f"### {name}", proto.comments.get(place, ""), _values(kind, place, proto)]
    return "\n\n".join(part for part in parts if part)


def _service(service: ServiceDescriptorProto, place: Place, proto: Proto) -> list[str]:
    rows = [
        (
            f"`{method.name}`",
            _sent(method.client_streaming, method.input_type, proto),
            _sent(method.server_streaming, method.output_type, proto),
            _callers(service.name, method),
            proto.comments.get((*place, _METHODS, index), ""),
        )
        for index, method in enumerate(service.method)
    ]
    heads = ("RPC", "takes", "gives", "may be called by", "")
    return [f"## {service.name}", proto.comments.get(place, ""), table(heads, rows)]


def _values(kind: EnumDescriptorProto, place: Place, proto: Proto) -> str:
    rows = [
        (f"`{value.name}`", str(value.number), proto.comments.get((*place, _VALUES, index), ""))
        for index, value in enumerate(kind.value)
    ]
    return table(("value", "", ""), rows)


def _callers(service: str, method: MethodDescriptorProto) -> str:
    name = f"pagemesh.v1.{service}"
    roles = CALLERS.get(f"{name}/{method.name}") or CALLERS.get(name, frozenset())
    return ", ".join(sorted(role.value for role in roles))


def _sent(streamed: bool, kind: str, proto: Proto) -> str:
    return ("stream of " if streamed else "") + _link(kind, proto)


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto, Place]]:
    for number, message in enumerate(file.message_type):
        yield from _with_nested(message, (_MESSAGES, number), "")


def _with_nested(
    message: DescriptorProto, place: Place, prefix: str
) -> Iterator[tuple[str, DescriptorProto, Place]]:
    if message.options.map_entry:
        return
    name = prefix + message.name
    yield name, message, place
    for number, nested in enumerate(message.nested_type):
        yield from _with_nested(nested, (*place, _NESTED_MESSAGES, number), f"{name}.")


def _enums(file: FileDescriptorProto) -> Iterator[tuple[str, EnumDescriptorProto, Place]]:
    for number, kind in enumerate(file.enum_type):
        yield kind.name, kind, (_ENUMS, number)
    for name, message, place in _messages(file):
        for number, kind in enumerate(message.enum_type):
            yield f"{name}.{kind.name}", kind, (*place, _NESTED_ENUMS, number)


def _fields(message: DescriptorProto, place: Place, proto: Proto) -> str:
    if not message.field:
        return ""
    rows = [
        (
            f"`{field.name}`",
            str(field.number),
            _field_type(field, message.nested_type, proto),
            proto.comments.get((*place, _FIELDS, number), ""),
        )
        for number, field in enumerate(message.field)
    ]
    return table(("field", "", "type", ""), rows)


def _field_type(
    field: FieldDescriptorProto, nested: Sequence[DescriptorProto], proto: Proto
) -> str:
    if field.type_name:
        entries = {f".{entry.name}": entry for entry in nested if entry.options.map_entry}
        for ending, entry in entries.items():
            if field.type_name.endswith(ending):
                key, value = (_field_type(part, (), proto) for part in entry.field)
                return f"map of {key} to {value}"
        name = _link(field.type_name, proto)
    else:
        name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"list of {name}" if field.label == FieldDescriptorProto.LABEL_REPEATED else name


def _link(kind: str, proto: Proto) -> str:
    if not kind.startswith(_OURS):
        return f"`{kind.removeprefix('.')}`"
    name = kind.removeprefix(_OURS)
    home = _homes()[name]
    page = "" if home == proto.name else f"{home}.md"
    return f"[{name}]({page}#{name.lower().replace('.', '')})"


@cache
def _homes() -> dict[str, str]:
    """The file of each message and enumeration."""
    return {
        name: proto.name
        for proto in protos()
        for found in (_messages(proto.file), _enums(proto.file))
        for name, _, _ in found
    }
