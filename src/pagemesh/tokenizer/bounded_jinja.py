"""Jinja's sandbox with an end: a template has so much time, and may write so much.

Time is looked at in loops and macros, without which no template runs for long, but for single operations on
huge values. Those come from whoever writes the template; what a conversation alone can do is bounded here.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Final

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.runtime
import jinja2.sandbox

MAX_SOURCE_CHARS: Final = 1024 * 1024
"""Of a template; the longest of known models has some 30,000."""

MAX_RENDERED_CHARS: Final = 40 * 1024 * 1024
"""Of a prompt: more than the largest body that the gateway takes."""

MAX_SECONDS: Final = 1.0
"""For one rendering; usual ones take less than a thousandth of it."""

_MAX_REPEATED: Final = 1_000_000
"""Items or characters that `*` may make, and bits of a number."""

_deadline: ContextVar[float] = ContextVar("rendering_deadline")


class TemplateLimitError(Exception):
    """A template takes too long, or writes too much."""


class BoundedEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Where templates are compiled and rendered, by `render`."""

    intercepted_binops = frozenset({"*", "**"})

    def tick(self) -> None:
        """Stands at the beginning of every loop's and macro's body."""
        if time.monotonic() > _deadline.get():
            raise TemplateLimitError(f"it takes longer than {MAX_SECONDS:g} s")

    def call_binop(
        self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any
    ) -> Any:
        """Products and powers, unless what comes of them would be huge."""
        if operator == "*":
            size = _length(left) * abs(right) if isinstance(right, int) else 0
            size = max(size, _length(right) * abs(left) if isinstance(left, int) else 0)
        else:
            is_whole = isinstance(left, int) and isinstance(right, int)
            size = left.bit_length() * abs(right) if is_whole else 0
        if size > _MAX_REPEATED:
            raise TemplateLimitError(f"{operator} would make something of size {size}")
        return super().call_binop(context, operator, left, right)

    def render(self, template: jinja2.Template, variables: Mapping[str, Any]) -> str:
        """The text; raises TemplateLimitError, and whatever the template raises."""
        token = _deadline.set(time.monotonic() + MAX_SECONDS)
        try:
            pieces, num_chars = [], 0
            for piece in template.generate(variables):
                pieces.append(piece)
                num_chars += len(piece)
                if num_chars > MAX_RENDERED_CHARS:
                    raise TemplateLimitError(f"it writes more than {MAX_RENDERED_CHARS} characters")
            return "".join(pieces)
        finally:
            _deadline.reset(token)

    def _parse(self, source: str, name: str | None, filename: str | None) -> jinja2.nodes.Template:
        tree = super()._parse(source, name, filename)
        repeated = (jinja2.nodes.For, jinja2.nodes.Macro, jinja2.nodes.CallBlock)
        for node in tree.find_all(repeated):
            assert isinstance(node, repeated)
            # By the environment, and no name that a template or a request could give to something else.
            tick = jinja2.nodes.EnvironmentAttribute("tick")
            call = jinja2.nodes.Call(tick, [], [], None, None)
            node.body.insert(0, jinja2.nodes.ExprStmt(call).set_lineno(node.lineno))
        return tree


def _length(value: object) -> int:
    """Of texts and lists, and bits of numbers."""
    if isinstance(value, int):
        return value.bit_length() // 8
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0
