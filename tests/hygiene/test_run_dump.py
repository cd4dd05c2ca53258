"""A dump of what a mesh told of a run has all that is the same each time, and two dumps that differ are told apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from scripts.run_dump.__main__ import record
from scripts.run_dump.left_out import HIDDEN, RULES, Rule, left_out
from scripts.run_dump.mesh import check_imports, environment_of, package_roots
from scripts.run_dump.readings import (
    count_entries,
    counts,
    family_entries,
    flat,
    log_entries,
    trace_entries,
)
from scripts.run_dump.requests import joined
from tests.hygiene.tree import ROOT
from tests.support.trace_receiver import ReceivedSpan

PACKAGE = 'from pkgutil import extend_path\n__path__ = extend_path(__path__, "pagemesh")\n'
PAGE = """\
# HELP pagemesh:kv_pulls_total Pulls.
# TYPE pagemesh:kv_pulls_total counter
pagemesh:kv_pulls_total{path="decode-1"} 2.0
# HELP pagemesh:kv_transfer_exposed_seconds Waits.
# TYPE pagemesh:kv_transfer_exposed_seconds histogram
pagemesh:kv_transfer_exposed_seconds_bucket{le="+Inf"} 3.0
pagemesh:kv_transfer_exposed_seconds_count 3.0
pagemesh:kv_transfer_exposed_seconds_sum 0.25
# HELP pagemesh:kv_blocks Seats.
# TYPE pagemesh:kv_blocks gauge
pagemesh:kv_blocks 4.0
"""


def span(number: int, parent: int, name: str, **attributes: str) -> ReceivedSpan:
    pairs = [
        KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in attributes.items()
    ]
    told = Span(
        name=name,
        attributes=pairs,
        kind=Span.SPAN_KIND_SERVER,
        span_id=bytes([number]),
        parent_span_id=bytes([parent]) if parent else b"",
    )
    return ReceivedSpan(told, {})


def test_spans_of_a_name_are_told_apart_by_what_they_tell_and_not_by_their_order() -> None:
    above = span(1, 9, "chat", worker="decode-1")
    first, second = span(2, 1, "submit", path="local"), span(3, 1, "submit", path="remote")
    below = span(4, 3, "decode", tried="7")
    found = dict(trace_entries("r", [above, first, second, below]))
    assert found == dict(trace_entries("r", [below, second, first, above]))
    assert found["trace/r/chat/attributes/worker"] == "decode"
    assert found["trace/r/chat/submit/attributes/path"] == "local"
    assert found["trace/r/chat/submit (2)/decode/kind"] == "SPAN_KIND_SERVER"
    # The worker died before it sent what is between them.
    assert "trace/r/decode/attributes/tried" in dict(trace_entries("r", [above, below]))


def test_values_that_are_hidden_have_no_part_in_the_order_of_spans() -> None:
    def found(*seconds: str) -> dict[str, Any]:
        paths = ("local", "remote")
        spans = [
            span(2 + index, 0, "submit", **{"pagemesh.kv.seconds": each, "path": paths[index]})
            for index, each in enumerate(seconds)
        ]
        return left_out(trace_entries("r", spans))

    assert found("0.1", "0.2") == found("0.2", "0.1")


def test_counts_are_what_a_request_added_on_all_workers_of_a_role() -> None:
    before = counts({"decode-0": PAGE})
    after = counts({"decode-0": PAGE, "decode-1": PAGE})
    assert dict(count_entries("r", before, after)) == {
        "metrics/counts/r/decode/pagemesh:kv_pulls_total{path=decode}": 2.0,
        "metrics/counts/r/decode/pagemesh:kv_transfer_exposed_seconds_count{}": 3.0,
    }
    families = dict(family_entries({"decode-1": PAGE}))
    assert families["metrics/families/decode/pagemesh:kv_blocks/type"] == "gauge"
    assert families["metrics/families/decode/pagemesh:kv_pulls/labels/path/decode"] is True


def test_log_lines_are_counted_by_request_and_event() -> None:
    line = {"event": "request over", "level": "debug", "request_id": "chat-1", "blocks": 3}
    other = {**line, "request_id": "somebody"}
    plain = {"event": "decode-1 up after  12.5 s at 127.0.0.1:4711"}
    found = dict(log_entries({"decode-0.log": [line, line, other], "up": [plain]}, ["chat"]))
    assert found["logs/decode.log/chat/debug request over"] == 2
    assert found["logs/decode.log/chat/debug request over/blocks"] == "3 | 3"
    assert found["logs/up/no request/decode up after <time> at <address>"] == 1
    assert not any("somebody" in path for path in found)


def test_json_in_a_string_and_numbers_are_taken_apart() -> None:
    found = dict(flat("a", {"list": '[{"worker": "decode-1", "share": 0.123456}]', "b": None}))
    assert found == {
        "a/list/length": 1,
        "a/list/0/worker": "decode",
        "a/list/0/share": 0.1235,
        "a/b": None,
    }


def test_how_tokens_came_together_in_chunks_does_not_matter() -> None:
    def stream(*texts: str) -> list[str]:
        last = {"text": "", "finish_reason": "stop"}
        choices = [*({"text": text, "finish_reason": None} for text in texts), last]
        chunks = [json.dumps({"choices": [choice]}) for choice in choices]
        return [line for chunk in (*chunks, "[DONE]") for line in (f"data: {chunk}", "")]

    assert joined(stream("a", "b", "c")) == joined(stream("ab", "c"))
    assert joined(stream("a", "b"))["text"] == "ab"


def test_what_a_rule_hides_still_has_to_be_there() -> None:
    rules = (Rule("a/.*", "by chance"), Rule("b", "comes and goes", drops=True))
    assert left_out([("a/x", 1), ("b", 2), ("c", 3)], rules) == {"a/x": HIDDEN, "c": 3}


def tree(folder: Path, *roots: str) -> Path:
    for root in roots:
        (folder / root / "pagemesh").mkdir(parents=True)
    (folder / roots[0] / "pagemesh/__init__.py").write_text(PACKAGE)
    return folder


def test_processes_import_from_the_tree_that_is_named_alone(tmp_path: Path) -> None:
    other = tree(tmp_path, "src", "services/router")
    check_imports(other, environment_of(other))
    check_imports(ROOT, environment_of(ROOT))
    # Without what hides it, this tree's package is found behind the other one.
    open_to_all = {**environment_of(other), "PAGEMESH_HIDDEN_PATHS": ""}
    with pytest.raises(RuntimeError, match=re.escape(str(package_roots(ROOT)[0]))):
        check_imports(other, open_to_all)
    with pytest.raises(RuntimeError, match="pagemesh"):
        check_imports(tmp_path / "nothing", environment_of(tmp_path / "nothing"))


def compare(folder: Path, before: Mapping[str, object], after: Mapping[str, object]) -> Any:
    paths = [folder / "before.json", folder / "after.json"]
    for path, dump in zip(paths, (before, after), strict=True):
        path.write_text(json.dumps(dump))
    command = [sys.executable, "-m", "scripts.run_dump", "--compare", *map(str, paths)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)


DUMP = {
    "trace/r/chat/kind": "SPAN_KIND_SERVER",
    "trace/r/chat/submit/attributes/pagemesh.kv.seconds": HIDDEN,
    "metrics/counts/r/router/pagemesh:kv_pulls_total{}": 2.0,
    "logs/router.log/r/info request ended": 1,
}


def test_a_dump_equals_itself(tmp_path: Path) -> None:
    compared = compare(tmp_path, DUMP, dict(DUMP))
    assert (compared.returncode, compared.stderr) == (0, "")
    assert "are equal" in compared.stdout


@pytest.mark.parametrize(
    ("path", "value", "lines"),
    [
        pytest.param(
            "metrics/counts/r/router/pagemesh:kv_pulls_total{}",
            3.0,
            ["- {}: 2.0", "+ {}: 3.0"],
            id="a count",
        ),
        pytest.param("trace/r/chat/kind", None, ['- {}: "SPAN_KIND_SERVER"'], id="a lost span"),
        pytest.param(
            "trace/r/chat/submit/attributes/pagemesh.kv.seconds",
            None,
            ['- {}: "…"'],
            id="a lost value that is hidden",
        ),
        pytest.param("logs/router.log/r/error oh", 1, ["+ {}: 1"], id="a new line of a log"),
    ],
)
def test_a_dump_with_a_change_is_told_apart(
    path: str, value: object, lines: list[str], tmp_path: Path
) -> None:
    after = {each: told for each, told in {**DUMP, path: value}.items() if told is not None}
    compared = compare(tmp_path, DUMP, after)
    assert (compared.returncode, compared.stderr) == (1, "")
    assert compared.stdout.splitlines() == [line.format(path) for line in lines]


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_a_run_is_dumped_with_all_that_happened_in_it(tmp_path: Path) -> None:
    entries = record(ROOT, tmp_path)
    dump = left_out(entries)
    killed = "trace/killed/POST /v1/completions/text_completion demo"
    assert dump[f"{killed}/events/1"] == "worker_lost"
    assert dump[f"{killed}/submit (2)/decode/remote_prefill/prefill/events/0"] == "first_token"
    pull = "trace/pull/POST /v1/completions/text_completion demo/submit/decode/remote_prefill"
    assert dump[f"{pull}/prefill/pull/fetch/attributes/pagemesh.kv.blocks"] == 19
    for name, status in (("prefix-hit", 200), ("refused", 400), ("unknown-model", 404)):
        assert dump[f"answers/{name}/status"] == status
    assert dump["metrics/counts/chat-streamed/router/vllm:generation_tokens_total"
        "{engine=0,model_name=demo}"] == 13  # fmt: skip
    assert dump["logs/router.log/killed/info request moved"] == 1
    paths = [path for path, _ in entries]
    # What comes and goes may have gone.
    unused = [
        rule.pattern
        for rule in RULES
        if not rule.drops and not any(rule.matches(path) for path in paths)
    ]
    assert unused == []
