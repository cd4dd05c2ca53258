"""The file that says which tenants there are: YAML, or JSON, which is YAML.

tenants:
  acme:
    keys:
      - sha256:…            # made by `pagemesh keys new --tenant acme`
    requests_per_minute: 600
    tokens_per_minute: 100000
    concurrent_requests: 32
    max_output_tokens: 4096   # of each answer
    max_output_tokens_policy: refuse
    weight: 2                 # twice the part of others when requests queue
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Annotated, Any, Final

import pydantic
import yaml
from pydantic import Field

from pagemesh.config.router import TENANT_NAME, OutputPolicy
from pagemesh.errors import ConfigError
from pagemesh.router.tenants.keys import read_hash
from pagemesh.router.tenants.tenant import Limits, Tenant

_Limit = Annotated[int, Field(gt=0)] | None

_LIMITS: Final = (
    "requests_per_minute",
    "tokens_per_minute",
    "concurrent_requests",
    "max_output_tokens",
    "max_output_tokens_policy",
)
"""Fields that the command line has too."""


class TenantEntry(pydantic.BaseModel):
    """What the file says of one tenant; a limit that is not there is that of the command line, null is none."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    keys: list[str] = []
    requests_per_minute: _Limit = None
    tokens_per_minute: _Limit = None
    concurrent_requests: _Limit = None
    max_output_tokens: _Limit = None
    max_output_tokens_policy: OutputPolicy = "cut"
    weight: Annotated[float, Field(ge=0.01, le=100)] = 1.0

    def limits(self, defaults: Limits) -> Limits:
        """Those that it names, and the others by default."""
        given = {name: getattr(self, name) for name in _LIMITS if name in self.model_fields_set}
        return replace(defaults, **given, weight=self.weight)


class KeyFileContent(pydantic.BaseModel):
    """The whole file."""

    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    tenants: dict[str, TenantEntry] = {}


class _UniqueKeys(yaml.SafeLoader):
    """Refuses what YAML itself would resolve by forgetting the first of two."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                line = key.start_mark.line + 1
                raise ConfigError(f"{key.value!r} in line {line} is there a second time")
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def read_content(text: str) -> KeyFileContent:
    """What a file says; ConfigError that shows none of its keys, which may be plain by mistake."""
    try:
        # A SafeLoader: it makes nothing but plain values.
        raw = yaml.load(text, _UniqueKeys)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = "" if mark is None else f" at line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"is neither YAML nor JSON{where}") from error
    try:
        content = KeyFileContent.model_validate({} if raw is None else raw)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise ConfigError(f"{where}: {first['msg']}") from error
    for name in content.tenants:
        if not TENANT_NAME.fullmatch(name):
            raise ConfigError(
                f"the tenant {name!r} has a name with other than letters, digits and ._-, or one of more "
                "than 64"
            )
    return content


def tenants_by_key(content: KeyFileContent, defaults: Limits) -> dict[bytes, Tenant]:
    """Tenants by the digests of their keys; ConfigError for a key that is no hash, or of two tenants."""
    found: dict[bytes, Tenant] = {}
    for name, entry in content.tenants.items():
        tenant = Tenant(name, entry.limits(defaults))
        for index, text in enumerate(entry.keys):
            where = f"tenants.{name}.keys[{index}]"
            digest = read_hash(text)
            if digest is None:
                raise ConfigError(
                    f"{where} is not sha256: and 64 hexadecimal digits. A key itself does not belong into "
                    "the file, but the hash that `pagemesh keys new` or `printf %s KEY | sha256sum` prints"
                )
            if digest in found:
                raise ConfigError(f"{where} is a key of the tenant {found[digest].name} as well")
            found[digest] = tenant
    return found
