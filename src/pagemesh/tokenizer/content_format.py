"""Whether a chat template takes a message's content apart itself: found in the template, as vLLM does."""

from __future__ import annotations

import jinja2.nodes


def takes_parts(template: jinja2.nodes.Template) -> bool:
    """Whether it goes through the parts of a content, `{% for part in message.content %}` or the like.

    Such a template wants a list of `{"type": "text", "text": …}`; any other one wants text.
    """
    contents = {
        assign.target.name
        for assign in template.find_all(jinja2.nodes.Assign)
        if isinstance(assign.target, jinja2.nodes.Name) and _is_content(assign.node, frozenset())
    }
    return any(
        _is_content(loop.iter, frozenset(contents)) for loop in template.find_all(jinja2.nodes.For)
    )


def _is_content(node: jinja2.nodes.Node, names: frozenset[str]) -> bool:
    """Whether it is some message's content, or a variable of one of these names."""
    # `content | selectattr(…)` and `content[1:]` are of the content, too.
    while isinstance(node, jinja2.nodes.Filter) and node.node is not None:
        node = node.node
    if isinstance(node, jinja2.nodes.Getitem) and isinstance(node.arg, jinja2.nodes.Slice):
        node = node.node
    match node:
        case jinja2.nodes.Name():
            return node.name in names
        case jinja2.nodes.Getattr():
            return node.attr == "content"
        case jinja2.nodes.Getitem():
            return isinstance(node.arg, jinja2.nodes.Const) and node.arg.value == "content"
    return False
