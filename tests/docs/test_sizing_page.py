"""The table of what fits on a GPU beside weights of 16, 8 and 4 bits is that of `pagemesh plan`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from pagemesh.cli.main import main
from tests.hygiene.tree import ROOT

SIZES: Final[dict[str, dict[str, int]]] = {
    "8B": {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "70B": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
    },
}
LLAMA: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
AWQ: Final = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
FLAGS: Final = ("--max-model-len", "8192", "--max-num-batched-tokens", "2048", "--json")
HEAD: Final = "| parameters | weights | GiB |"


def rows() -> list[list[str]]:
    """Cells of the table, its head among them."""
    text = (ROOT / "docs/sizing.md").read_text(encoding="utf-8")
    table = text[text.index(HEAD) :].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()]
    return [[cell.strip("`") for cell in row] for row in cells if len(row) > 1]


def planned(folder: Path, way: str, gpu: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    asked: tuple[str, ...] = () if way == "bfloat16" else ("--quantization", way)
    assert main(["plan", str(folder), "--gpu", gpu, *asked, *FLAGS]) == 0
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_table_of_what_fits_is_what_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    head, *lines = rows()
    assert [line[0] for line in lines] == ["8B"] * 5 + ["70B"] * 5
    for size, way, gib, *tokens in lines:
        config = LLAMA | SIZES[size] | ({"quantization_config": AWQ} if way == "awq" else {})
        (tmp_path / "config.json").write_text(json.dumps(config))
        answers = [planned(tmp_path, way, gpu, capsys) for gpu in head[3:]]
        assert gib == f"{answers[0]['per_device']['weight_bytes'] / 2**30:.1f}"
        assert tokens == [f"{answer['num_tokens']:,}" for answer in answers]
