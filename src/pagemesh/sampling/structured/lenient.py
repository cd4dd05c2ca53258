"""JSON schemas that are followed as far as they can be, for requests that do not ask for more."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any, Final

from pagemesh.sampling.structured.complexity import inner_schemas

GUIDANCE: Final = "x-guidance"
"""Where a schema says how the grammar library is to take it."""

_ESCAPED: Final = re.compile(r"\\[^1-9]", re.DOTALL)
_UNFOLLOWED: Final = re.compile(r"\(\?<?[=!]|\\[1-9]")
"""What no automaton can look for: what stands around a place, and what came before. The library refuses it."""


def leniently(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without what cannot be enforced: the grammar library leaves out keywords and formats that it does
    not know, and this the patterns."""
    whole: dict[str, Any] = copy.deepcopy(dict(schema))
    for inner in inner_schemas(whole):
        pattern = inner.get("pattern")
        if isinstance(pattern, str) and _UNFOLLOWED.search(_ESCAPED.sub("", pattern)):
            del inner["pattern"]
    given = whole.get(GUIDANCE)
    whole[GUIDANCE] = {**(given if isinstance(given, dict) else {}), "lenient": True}
    return whole
