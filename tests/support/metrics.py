"""What a page of metrics says."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families


def metric(page: str, name: str, **labels: str) -> float:
    """Sum of a metric's samples over the labels that are not given."""
    # Tests ask again and again, and a page is long.
    lines = "".join(f"{line}\n" for line in page.splitlines() if line.startswith(name))
    return sum(
        sample.value
        for family in text_string_to_metric_families(lines)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def with_engine(name: str, labels: Mapping[str, str]) -> dict[str, str]:
    """All labels of a series; those of vLLM's names have an engine as well, of which each process has one."""
    return {**labels, "engine": "0"} if name.startswith("vllm:") else dict(labels)


def num_used_blocks(page: str) -> int:
    """Blocks of a worker that requests or streams own, by the block pool's own count."""
    total = metric(page, "pagemesh:kv_blocks")
    assert total > 0
    return int(total - metric(page, "pagemesh:kv_blocks_free"))
