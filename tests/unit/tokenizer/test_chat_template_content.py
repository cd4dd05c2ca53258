"""Which chat templates take a message's content apart themselves."""

from __future__ import annotations

import pytest

from pagemesh.tokenizer.chat_template import ChatTemplate, RenderOptions

LOOP = "{% for m in messages %}{{ m.role }}:"


@pytest.mark.parametrize(
    ("body", "takes_parts"),
    [
        ("{{ m.content }}", False),
        ("{{ m['content'] | trim }}", False),
        ("{% for c in m.tool_calls %}{{ c }}{% endfor %}", False),
        ("{% for part in m.content %}{{ part.text }}{% endfor %}", True),
        ("{% for part in m['content'] %}{{ part['text'] }}{% endfor %}", True),
        ("{% for part in m.content | selectattr('text') %}{{ part.text }}{% endfor %}", True),
        ("{% for part in m.content[1:] %}{{ part.text }}{% endfor %}", True),
        ("{% set c = m['content'] %}{% for part in c %}{{ part.text }}{% endfor %}", True),
        ("{% set c = m['role'] %}{% for part in c %}{{ part.text }}{% endfor %}", False),
        (
            "{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}",
            True,
        ),
    ],
)
def test_a_template_shows_what_it_takes(body: str, takes_parts: bool) -> None:
    template = ChatTemplate(LOOP + body + "{% endfor %}", {})
    assert template.takes_parts is takes_parts


@pytest.mark.parametrize("texts", [["a", "b"], ["b"], []])
def test_the_last_part_is_gone_on_with(texts: list[str]) -> None:
    source = LOOP + "{% for p in m.content %}<{{ p.text }}>{% endfor %}END{% endfor %}"
    content = [{"type": "text", "text": text} for text in texts]
    options = RenderOptions(add_generation_prompt=False, continue_final_message=True)
    prompt = ChatTemplate(source, {}).render([{"role": "user", "content": content}], options)
    assert prompt == "user:" + "".join(f"<{text}>" for text in texts).removesuffix(">") + (
        "<" if not texts else ""
    )


@pytest.mark.parametrize("message", [{"content": None}, {}], ids=["null", "absent"])
def test_a_message_without_content_is_gone_on_with_in_the_templates_form(
    message: dict[str, None],
) -> None:
    """The template could do without a content, and shows parts of one."""
    parts = "{% if m.content %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}"
    source = LOOP + parts + "END{% endfor %}"
    options = RenderOptions(add_generation_prompt=False, continue_final_message=True)
    prompt = ChatTemplate(source, {}).render([{"role": "assistant", **message}], options)
    assert prompt == "assistant:<"
