"""Which workers a router takes to hash blocks as it does, and what it says of the others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pagemesh.core.engine import EngineInfo
from pagemesh.core.kv import KvLayout
from pagemesh.membership.directory import Directory
from pagemesh.router.parity import Degraded, Difference, Parity
from pagemesh.router.routing.candidate import Role
from pagemesh.tokenizer import Tokenizer
from pagemesh.v1 import types_pb2
from pagemesh.worker.describe import make_canary
from tests.unit.kvstore.builders import make_worker

DEMO = Path(__file__).resolve().parents[3] / "models/demo"
TEXT_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "config.json")


@pytest.fixture(scope="module")
def parity() -> Parity:
    return Parity({"demo": Tokenizer(DEMO)})


def copy_of_demo(folder: Path) -> Path:
    for name in TEXT_FILES:
        shutil.copy(DEMO / name, folder)
    return folder


def member(
    folder: Path | None, worker_id: str = "decode-0", epoch: int = 1, arithmetic: str = ""
) -> types_pb2.WorkerInfo:
    """A worker with this model folder, as it registers."""
    info = make_worker(worker_id, epoch=epoch)
    layout = KvLayout.uniform(16, num_layers=2, num_kv_heads=4, head_dim=8, dtype="float32")
    engine = EngineInfo(info.model_fingerprint, layout, 1000, 2048, 8, arithmetic=arithmetic)
    canary = engine.hasher().canary()
    path = None if folder is None else str(folder)
    told = EngineInfo("model-a", layout, 1000, 2048, 8, model_folder=path, canary=canary)
    info.canary.CopyFrom(make_canary(told))
    info.arithmetic = arithmetic
    return info


def test_equal_files_and_code_are_no_difference(parity: Parity, tmp_path: Path) -> None:
    assert parity.compare(member(copy_of_demo(tmp_path))) is None


def test_no_arithmetic_is_a_difference(parity: Parity) -> None:
    told = {name: member(DEMO, arithmetic=name) for name in ("", "cpu-fma-float32", "cuda-sm90")}
    assert [parity.compare(info) for info in told.values()] == [None, None, None]
    assert len({info.canary.block_digest for info in told.values()}) == 3


def test_another_template_is_named(parity: Parity, tmp_path: Path) -> None:
    template = copy_of_demo(tmp_path) / "chat_template.jinja"
    template.write_text(template.read_text().replace("<|im_end|>", " <|im_end|>"))
    assert parity.compare(member(tmp_path)) is Difference.TEMPLATE


@pytest.mark.parametrize("change", ["merges", "added token"])
def test_another_tokenizer_is_named(parity: Parity, tmp_path: Path, change: str) -> None:
    path = copy_of_demo(tmp_path) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    if change == "merges":
        tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:100]
    else:
        tokenizer["added_tokens"] = []
    path.write_text(json.dumps(tokenizer))
    assert parity.compare(member(tmp_path)) is Difference.TOKENIZER


def test_other_names_of_the_same_token_ids_are_named(parity: Parity) -> None:
    info = member(DEMO)
    info.canary.block_digest = bytes(16)
    assert parity.compare(info) is Difference.HASHING


@pytest.mark.parametrize("field", ["model_fingerprint", "block_size", "dtype", "arithmetic"])
def test_names_depend_on_what_the_worker_registers(parity: Parity, field: str) -> None:
    info = member(DEMO)
    if field == "model_fingerprint":
        info.model_fingerprint = "model-b"
    elif field == "block_size":
        info.kv_layout.block_size = 32
    elif field == "arithmetic":
        info.arithmetic = "cpu-fma-float32"
    else:
        info.kv_layout.dtype = "bfloat16"
    assert parity.compare(info) is Difference.HASHING


def test_a_broken_tokenizer_differs(parity: Parity, tmp_path: Path) -> None:
    (copy_of_demo(tmp_path) / "tokenizer.json").write_text("{}")
    assert parity.compare(member(tmp_path)) is Difference.TOKENIZER


def test_what_a_worker_has_no_files_for_is_not_compared(parity: Parity, tmp_path: Path) -> None:
    assert parity.compare(member(None)) is None
    assert parity.compare(member(tmp_path)) is None


def test_without_a_template_plain_text_is_compared(parity: Parity, tmp_path: Path) -> None:
    (copy_of_demo(tmp_path) / "chat_template.jinja").unlink()
    info = member(tmp_path)
    assert info.canary.text_digest == b""
    assert parity.compare(info) is None
    info.canary.token_digest = bytes(16)
    assert parity.compare(info) is Difference.TOKENIZER


def test_a_router_without_a_template_differs_from_a_worker_with_one(tmp_path: Path) -> None:
    (copy_of_demo(tmp_path) / "chat_template.jinja").unlink()
    parity = Parity({"demo": Tokenizer(tmp_path)})
    assert parity.compare(member(DEMO)) is Difference.TEMPLATE
    assert parity.compare(member(tmp_path)) is None


@pytest.mark.parametrize("told", ["nothing", "another version", "no blocks"])
def test_what_cannot_be_compared_is_not_trusted(parity: Parity, told: str) -> None:
    info = member(DEMO)
    if told == "nothing":
        info.ClearField("canary")
    elif told == "another version":
        info.canary.version += 1
    else:
        info.canary.block_digest = b""
    assert parity.compare(info) is Difference.UNKNOWN


def test_a_router_names_no_gigabytes_for_a_worker(parity: Parity) -> None:
    info = member(DEMO)
    info.kv_layout.block_size = 2**32 - 1
    assert parity.compare(info) is Difference.UNKNOWN


def test_templates_may_print_the_date(tmp_path: Path) -> None:
    template = copy_of_demo(tmp_path) / "chat_template.jinja"
    template.write_text("{{ strftime_now('%f') }}" + template.read_text())
    assert member(tmp_path) == member(tmp_path)


@pytest.mark.parametrize("refuses", ["system", "all"])
def test_templates_may_refuse_conversations(tmp_path: Path, refuses: str) -> None:
    template = copy_of_demo(tmp_path) / "chat_template.jinja"
    condition = "messages[0].role == 'system'" if refuses == "system" else "true"
    refusal = "{% if " + condition + " %}{{ raise_exception('no') }}{% endif %}"
    template.write_text(refusal + template.read_text())
    assert member(tmp_path).canary.text_digest
    assert Parity({"demo": Tokenizer(tmp_path)}).compare(member(tmp_path)) is None


def test_each_incarnation_is_judged_once_when_it_joins(tmp_path: Path) -> None:
    (copy_of_demo(tmp_path) / "tokenizer.json").write_text("{}")
    parity, directory = Parity({"demo": Tokenizer(DEMO)}), Directory("127.0.0.1:1")
    parity.follow(directory)
    odd = member(tmp_path)
    with capture_logs() as logs:
        directory._roster.join(member(DEMO, "decode-1"))
        for _ in range(2):
            directory._roster.join(odd)
    (entry,) = [entry for entry in logs if entry["event"] == "worker_degraded"]
    assert (entry["log_level"], entry["worker_id"], entry["reason"]) == (
        "error",
        "decode-0",
        "tokenizer",
    )
    assert "tokenizer.json" in entry["advice"]
    assert parity.degraded() == [Degraded("decode-0", "demo", Role.DECODE, Difference.TOKENIZER)]
    assert parity.is_degraded("decode-0")
    assert not parity.is_degraded("decode-1")
    directory._roster.join(member(DEMO, epoch=2))
    assert parity.degraded() == []
    directory._roster.join(member(tmp_path, epoch=3))
    directory._roster.leave("decode-0")
    assert parity.degraded() == []


def test_workers_of_other_models_are_not_judged() -> None:
    parity, directory = Parity({"another": Tokenizer(DEMO)}), Directory("127.0.0.1:1")
    parity.follow(directory)
    info = member(None)
    info.ClearField("canary")
    directory._roster.join(info)
    assert parity.degraded() == []
