"""The HTTP routes, from the document that the gateway serves at /openapi.json."""

from __future__ import annotations

from typing import Any

from pagemesh.router.openapi.document import openapi_document
from tools.docsite.cells import table

Schema = dict[str, Any]


def markdown() -> str:
    """All routes, then the bodies that they read."""
    document = openapi_document()
    parts = ["## Routes"]
    rows = [
        (
            f"`{method.upper()} {path}`",
            operation["summary"],
            ", ".join(_bodies(operation)),
            " ".join(sorted(operation["responses"])),
        )
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    ]
    parts.append(table(("route", "", "body", "statuses"), rows))
    parts.append("## Bodies and answers")
    for name, schema in sorted(document["components"]["schemas"].items()):
        parts.append(f"### {name}")
        if text := schema.get("description"):
            parts.append(text)
        if fields := schema.get("properties"):
            needed = schema.get("required", ())
            parts.append(
                table(
                    ("field", "type", ""),
                    [
                        (
                            f"`{field}`" + (" **needed**" if field in needed else ""),
                            _type(kind),
                            kind.get("description", ""),
                        )
                        for field, kind in fields.items()
                    ],
                )
            )
        else:
            parts.append(_type(schema))
    return "\n\n".join(parts)


def _bodies(operation: Schema) -> list[str]:
    body = operation.get("requestBody")
    if body is None:
        return []
    schema = body["content"]["application/json"]["schema"]
    return [_type(each) for each in schema.get("anyOf", [schema])]


def _type(schema: Schema) -> str:
    match schema:
        case {"$ref": str(ref)}:
            name = ref.rpartition("/")[2]
            return f"[{name}](#{name.lower()})"
        case {"anyOf": list(kinds)} | {"oneOf": list(kinds)} | {"allOf": list(kinds)}:
            names = [_type(kind) for kind in kinds if kind.get("type") != "null"]
            return ", ".join(dict.fromkeys(names))
        case {"enum": list(values)}:
            return ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array", "items": dict(items)}:
            return f"list of {_type(items) or 'anything'}"
        case {"type": str(name)}:
            return name
        case {"type": list(names)}:
            return ", ".join(names)
    return "anything"
