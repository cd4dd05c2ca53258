"""Templates of strangers: what they can do to a conversation, and to nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.errors import InvalidRequestError
from pagemesh.tokenizer.chat_template import RenderOptions
from pagemesh.tokenizer.render_process import render_apart

HI: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
DOUBLED = "{% set s = namespace(x='aaaaaaaa') %}{% for i in range(60) %}{% set s.x = s.x ~ s.x %}{% endfor %}{{ s.x }}"
NESTED = "{% set s = namespace(x=[1]) %}{% for i in range(60) %}{% set s.x = [s.x, s.x] %}{% endfor %}{{ s.x }}"


def render(source: str, **variables: Any) -> str:
    return render_apart(source, {"bos_token": "<s>"}, HI, RenderOptions(variables=variables))


def refusal(source: str, **variables: Any) -> str:
    with pytest.raises(InvalidRequestError) as error:
        render(source, **variables)
    return error.value.message


def test_a_template_is_rendered_as_in_the_router() -> None:
    assert render("{{ bos_token }}{{ messages[0].content }} {{ x }}", x="é") == "<s>hi é"


def test_a_template_chooses_how_it_gets_contents() -> None:
    given = [{"role": "user", "content": [{"type": "text", "text": text} for text in "ab"]}]
    source = "{% for part in messages[0].content %}{{ part.text }}{% endfor %}"
    assert render_apart(source, {}, given, RenderOptions()) == "ab"
    assert render_apart("{{ messages[0].content }}", {}, given, RenderOptions()) == "a\nb"
    assert render_apart(source, {}, given, RenderOptions(as_parts=False)) == ""


def test_a_template_chooses_how_it_gets_calls() -> None:
    function = {"name": "f", "arguments": '{"a": 1}'}
    called: dict[str, Any] = {"role": "assistant", "tool_calls": [{"function": function}]}
    source = (
        "{% for m in messages if m.tool_calls %}{{ 'a' + m.tool_calls[0].function.arguments }}"
        "{% if m.content is none %}<none>{% endif %}{% endfor %}"
    )
    assert render_apart(source, {}, [called], RenderOptions()) == 'a{"a": 1}'
    called["content"] = None
    assert render_apart(source, {}, [called], RenderOptions()) == 'a{"a": 1}<none>'


def test_the_words_of_a_template_that_refuses_arrive() -> None:
    assert "no tools here" in refusal("{{ raise_exception('no tools here') }}")


@pytest.mark.product(most=4)
@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'a'|center(10000000000) }}",
        "{{ 'a' * 10000000000 }}",
        "{{ 'a' * n }}",
        "{{ n ** n }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ lipsum(n=10000000) }}",
        "{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
        DOUBLED,
        NESTED,
        "{{ " + "(" * 20000 + "1" + ")" * 20000 + " }}",
        "{% for a in x %}" * 30 + "{% endfor %}" * 30,
    ],
    ids=lambda source: source[:40],
)
def test_what_would_never_end_or_fit_is_refused(source: str) -> None:
    assert refusal(source, n=10**10)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.environ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append.__self__.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ (''|attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ strftime_now.__self__.__class__.__init__.__globals__ }}",
    ],
)
def test_there_is_no_way_out_of_the_sandbox(source: str) -> None:
    assert "unsafe" in refusal(source)
