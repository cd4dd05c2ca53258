"""Every process of a running mesh exports what the registry says of it: no more, no less, with few series."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pagemesh.telemetry.metrics.catalog import all_specs
from pagemesh.telemetry.metrics.engine import ITERATION_TOKENS
from pagemesh.telemetry.metrics.specs import Process, Spec, kind_of
from tests.observability.conftest import PARTS, ObservedMesh
from tests.support.metrics import metric

# The parser takes `_total` from the names of counters, whether they have it or not.
DECLARED: Final = {spec.series.removesuffix("_total"): spec for spec in all_specs()}

NOT_YET: Final = {
    "pagemesh:kv_import_failures": "no stream of KV has failed",
}
"""Metrics without series in this mesh, and why."""

NOT_ON: Final = {
    ("prefill", "pagemesh:link_bytes_per_second"): "it has pulled from nobody",
    ("prefill", "pagemesh:link_latency_seconds"): "it has pulled from nobody",
}

SOURCES: Final = {
    "model_name": r"demo",
    "sender": r"(prefill|decode)-0",
    "block_size": r"16",
    "cache_dtype": r"float32|bfloat16",
    "num_gpu_blocks": r"\d+",
    "kv_cache_size_tokens": r"\d+",
    "kv_cache_max_concurrency": r"\d+\.\d\d",
    "reason": r"[A-Z_]+",
}
"""What the values are, in this mesh, of labels of which the registry names but the source."""

SCRAPER: Final = Path(__file__).with_name("one_server_scraper.py")

MOST_SERIES: Final = 1500
"""Of one process. Most are buckets of histograms."""


def process_of(part: str) -> Process:
    return Process(part.partition("-")[0])


def families(page: str) -> dict[str, Metric]:
    """What a page has, by name as in DECLARED; gauges may end in `_total` themselves."""
    found = text_string_to_metric_families(page)
    return {family.name.removesuffix("_total"): family for family in found}


def series(page: str) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted(sample.labels.items())))
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def complaint(spec: Spec, labels: Mapping[str, str]) -> str | None:
    """What is wrong with the labels of a series."""
    if set(labels) != set(spec.label_names):
        return f"{spec.name} has the labels {sorted(labels)}"
    for name, value in labels.items():
        label = spec.label(name)
        fits = value in label.values or (
            not label.values and re.fullmatch(SOURCES.get(name, ""), value)
        )
        if not fits:
            return f"{spec.name} has {name}={value!r}"
    return None


@pytest.fixture(scope="module")
def pages(loaded: ObservedMesh) -> dict[str, str]:
    deadline = time.monotonic() + 30
    # Envoy tells of a histogram's values every five seconds, a worker of its load when it changes.
    while "envoy_http_downstream_rq_time" not in loaded.page("gateway"):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return {part: loaded.page(part) for part in PARTS}


@pytest.mark.parametrize("part", PARTS)
def test_everything_exported_is_declared_for_this_process(pages: dict[str, str], part: str) -> None:
    wrong = []
    for name, family in families(pages[part]).items():
        spec = DECLARED.get(name)
        if spec is None or process_of(part) not in spec.processes:
            wrong.append(f"{name} is not declared for it")
            continue
        if family.type != kind_of(spec):
            wrong.append(f"{name} is a {family.type}")
        if family.documentation != spec.help and not name.startswith(("envoy_", "process_")):
            wrong.append(f"{name} is explained otherwise")
        for sample in family.samples:
            labels = {key: value for key, value in sample.labels.items() if key != "le"}
            if found := complaint(spec, labels):
                wrong.append(found)
    assert wrong == []


@pytest.mark.parametrize("part", PARTS)
def test_everything_declared_for_this_process_is_exported(pages: dict[str, str], part: str) -> None:
    shown = {name for name, family in families(pages[part]).items() if family.samples}
    process = process_of(part)
    missing = {
        name
        for name, spec in DECLARED.items()
        if process in spec.processes
        and name not in shown
        # A gateway without its port would not be here.
        and spec.only_with in ("", "--metrics-port")
    }
    excused = {*NOT_YET, *(name for where, name in NOT_ON if where == process.value)}
    assert missing - excused == set()


def test_no_excuse_is_left_over(pages: dict[str, str]) -> None:
    shown = {
        (process_of(part).value, name)
        for part, page in pages.items()
        for name, family in families(page).items()
        if family.samples
    }
    assert {name for _, name in shown} & set(NOT_YET) == set()
    assert shown & set(NOT_ON) == set()


@pytest.mark.parametrize("part", PARTS)
def test_a_process_has_few_series(pages: dict[str, str], part: str) -> None:
    assert len(series(pages[part])) < MOST_SERIES


def test_the_gateways_page_for_clients_has_what_routers_show_and_the_workers_steps(
    loaded: ObservedMesh,
) -> None:
    answer = loaded.load.metrics()
    ours = {name for name, _ in series(loaded.page("router"))}
    steps = {f"{ITERATION_TOKENS.name}_{ending}" for ending in ("bucket", "sum", "count")}
    assert {name for name, _ in series(answer)} == ours | steps


def test_scripts_for_one_vllm_server_read_true_gauges_from_the_page_for_clients(
    loaded: ObservedMesh,
) -> None:
    page = loaded.page("router")
    hits, queries = (
        metric(page, f"vllm:prefix_cache_{what}_total") for what in ("hits", "queries")
    )
    expected = f"kv=0.0 queue=0 hits={hits / queries:.2f}"
    assert 0 < hits < queries
    for by in ("beginning", "anywhere"):
        command = [sys.executable, str(SCRAPER), by, loaded.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout.strip()) == (0, expected), (by, done.stderr)


def test_the_routers_view_is_what_its_workers_say(loaded: ObservedMesh) -> None:
    router, decode = loaded.page("router"), loaded.page("decode-0")
    assert metric(router, "vllm:cache_config_info") == 1
    # Of what was given up, the worker had made some more than anybody read.
    generated = metric(router, "vllm:generation_tokens_total")
    assert 0 < generated <= metric(decode, "vllm:generation_tokens_total")
    prompts = metric(router, "vllm:prompt_tokens_total")
    by_source = [
        metric(router, "vllm:prompt_tokens_by_source_total", source=source)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer")
    ]
    assert sum(by_source) == prompts
    assert by_source[1] == metric(router, "vllm:prompt_tokens_cached_total") > 0
    assert by_source[2] == 0
    assert metric(decode, "vllm:prompt_tokens_by_source_total", source="external_kv_transfer") > 0


def test_what_clients_send_makes_no_series(loaded: ObservedMesh) -> None:
    loaded.load.odd(0)
    before = {part: series(loaded.page(part)) for part in PARTS}
    for number in range(1, 25):
        loaded.load.odd(number)
    grown = {part: series(loaded.page(part)) - before[part] for part in PARTS}
    # Blocks that the links' measurements count may have come meanwhile; names from clients may not.
    words = [
        (part, each)
        for part, found in grown.items()
        for each in found
        if "odd" in str(each).lower()
    ]
    assert words == []
    assert sum(map(len, grown.values())) <= 2
