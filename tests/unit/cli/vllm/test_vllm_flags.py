"""What vLLM's users type is taken, or refused with what to write instead; nothing is ignored in silence."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pagemesh.cli import serve
from pagemesh.cli.arguments import UsageError
from pagemesh.cli.main import COMMANDS, main
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up import memory
from pagemesh.cli.vllm.adapt import Adapted, adapt, plain_number
from pagemesh.cli.vllm.environment import add_environment
from pagemesh.cli.vllm.flags import RULES
from pagemesh.cli.vllm.rules import Fate, Kind, own_flags
from pagemesh.cli.vllm.variants import Changes, make_variant
from pagemesh.config import HubConfig, SchedulerConfig
from pagemesh.config.environment import API_KEY_VARIABLE
from pagemesh.errors import ConfigError
from tests.support.guide_commands import SERVERS
from tests.unit.gguf.small_file import write_small
from tools import vllm_flags

GUIDES = [line.split(maxsplit=2)[2] for line in SERVERS if line.startswith("PROGRAM serve ")] + [
    line.split(maxsplit=3)[3] for line in SERVERS if line.startswith("python -m ")
]

MODULES = ("pagemesh.entrypoints.openai.api_server", "pagemesh.entrypoints.api_server")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Settings of the commands that were run."""
    found: list[Any] = []
    stand_in = SimpleNamespace(run=found.append)
    for command in COMMANDS.values():
        monkeypatch.setitem(sys.modules, command.module, stand_in)
    monkeypatch.setattr(serve, "visible_gpus", tuple)
    monkeypatch.setattr(serve, "num_sockets", lambda: 1)
    return found


def served(text: str) -> list[str]:
    return adapt(UpConfig, text.split()).arguments


def refusal(text: str) -> str:
    with pytest.raises(UsageError) as caught:
        adapt(UpConfig, text.split())
    return str(caught.value)


@pytest.mark.parametrize("text", GUIDES)
def test_what_guides_write_is_served(text: str, started: list[Any]) -> None:
    assert main(["serve", *text.split()]) == 0
    (config,) = started
    assert config.served.models[0].source == "MODEL"
    assert config.prefill == 0


@pytest.mark.parametrize("module", MODULES)
def test_modules_of_guides_are_the_same_command(
    module: str, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--model", "MODEL", "--max-num-seqs", "1024"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(module, run_name="__main__")
    (config,) = started
    assert config.scheduler == SchedulerConfig(max_num_seqs=1024)


@pytest.mark.parametrize("name", ["throughput", "latency"])
def test_old_names_of_benchmarks_are_the_same_commands(
    name: str, started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["x", "--model", "MODEL", "--input-len", "512"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module(f"pagemesh.benchmark_{name}", run_name="__main__")
    assert type(started[0]) is COMMANDS[f"bench {name}"].settings


def test_each_flag_of_vllms_is_known_and_the_page_says_how() -> None:
    names = vllm_flags.NAMES.read_text().split()
    known = {*own_flags(UpConfig), *RULES, "--help", "--performance-mode"}
    assert set(names) - known == set()
    text = vllm_flags.PAGE.read_text(encoding="utf-8")
    assert vllm_flags.page(text) == text, "run `python -m tools.vllm_flags`"


def test_no_flag_of_ours_is_taken_for_something_else() -> None:
    own = own_flags(UpConfig)
    assert [name for name, rule in RULES.items() if name in own and rule.flag != name] == []
    targets = [rule.flag for rule in RULES.values() if rule.fate is Fate.RENAMED]
    assert [flag for flag in targets if flag not in own] == []


def test_every_refusal_says_something() -> None:
    assert [name for name, rule in RULES.items() if not rule.says and not rule.flag] == []


def test_flags_are_renamed_with_their_values() -> None:
    assert served("m --dtype half --uvicorn-log-level critical") == (
        ["--model", "m", "--dtype", "float16", "--log-level", "error"]
    )
    assert served("m --device-memory-utilization=0.5") == (
        ["--model", "m", "--gpu-memory-utilization", "0.5"]
    )
    assert served("m --max_num_seqs 8") == ["--model", "m", "--max-num-seqs", "8"]
    assert served("m --async-scheduling") == ["--model", "m", "--async-scheduling", "on"]
    assert served("m --no-async-scheduling") == ["--model", "m", "--async-scheduling", "off"]
    assert served("m --async-scheduling auto") == ["--model", "m", "--async-scheduling", "auto"]
    assert served("--port 1 m") == ["--model", "m", "--port", "1"]


def test_members_of_json_objects_may_be_given_one_by_one() -> None:
    given = (
        "m --override-generation-config.max-new-tokens 9 --override_generation_config.temperature=0.5"
        " --default-chat-template-kwargs.a.b x --default-chat-template-kwargs.a.c true"
    )
    assert served(given) == [
        *("--model", "m"),
        *("--override-generation-config", '{"max_new_tokens": 9, "temperature": 0.5}'),
        *("--default-chat-template-kwargs", '{"a": {"b": "x", "c": true}}'),
    ]
    whole = 'm --override-generation-config {"top_k":1} --generation-config vllm'
    assert served(whole) == ["--model", *whole.split()]
    assert "write one of them" in refusal(f"{whole} --override-generation-config.top-p 0.5")
    assert "has another value" in refusal(
        "m --default-chat-template-kwargs.a 1 --default-chat-template-kwargs.a.b 2"
    )


def test_what_is_always_so_is_noted_and_cannot_be_turned_off() -> None:
    adapted = adapt(UpConfig, ["m", "--enable-chunked-prefill", "--num-scheduler-steps", "8"])
    assert adapted.arguments == ["--model", "m"]
    assert [note.split(":")[0] for note in adapted.notes] == [
        "--enable-chunked-prefill",
        "--num-scheduler-steps 8",
    ]
    assert "cannot be" in refusal("m --no-enable-chunked-prefill")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("m --tensor-parallel-size 4", "--tensor-parallel-size 4 is not there yet"),
        ("m -tp 2", "--tensor-parallel-size 2 is not there yet"),
        ("m --enable-lora", "merge one"),
        ("m --quantization-config {}", "write --quantization fp8, int8 or int4, which"),
        ("m --speculative-config.model x", "speculates"),
        ("m --kv-cache-dtype fp8_e5m2", "write fp8"),
        ("m --load-format dummy", "safetensors"),
        ("m --middleware x", "in front of the gateway"),
        ("m --max-num-sequences 3", "did you mean --max-num-seqs?"),
        ("m --port", "--port needs a value"),
        ("m n", "'n' belongs to no flag"),
        ("m --model n", "write one of them"),
        ("m --performance-mode fast", "throughput"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(text: str, says: str) -> None:
    assert says in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "--tensor-parallel-size 1",
        "-dp 1",
        "--quantization None",
        "--no-enable-lora",
        "--seed None",
        "--cpu-offload-gb 0",
    ],
)
def test_what_asks_for_nothing_is_taken(text: str) -> None:
    assert adapt(UpConfig, ["m", *text.split()]) == Adapted(["--model", "m"], [])


@pytest.mark.parametrize("name", ["auto", "safetensors", "bitsandbytes", "gguf"])
def test_a_format_to_load_is_for_the_models_to_be_held_against(name: str) -> None:
    adapted = adapt(UpConfig, ["m", f"--load-format={name}"])
    assert (adapted.arguments, adapted.load_format) == (["--model", "m"], name)
    (note,) = adapted.notes
    assert note.startswith(f"--load-format {name}: a model's files are read as what they are")


def test_modes_give_way_to_what_is_said() -> None:
    arguments = served("m --performance-mode throughput --max-num-seqs 9")
    assert arguments == ["--model", "m", "--max-num-batched-tokens", "8192", "--max-num-seqs", "9"]
    assert served("m --performance-mode balanced") == ["--model", "m"]


def test_numbers_may_have_a_unit() -> None:
    numbers = {"32k": "32000", "32K": "32768", "1.5k": "1500", "1M": "1048576", "7": "7", "k": "k"}
    assert {text: plain_number(text) for text in numbers} == numbers
    # What is no whole number is left for the setting to refuse.
    assert plain_number("1.0001k") == "1.0001k"


def test_kinds_follow_from_the_settings() -> None:
    own = own_flags(UpConfig)
    assert own["--model"] is Kind.LIST
    assert own["--max-model-len"] is Kind.NUMBER
    assert own["--enforce-eager"] is Kind.SWITCH
    assert own["--kv-cache-memory"] is own["--dtype"] is Kind.TEXT


def test_variables_are_heeded_or_named() -> None:
    adapted = Adapted(["--model", "m"])
    variables = {
        "VLLM_API_KEY": "secret",
        "VLLM_ENGINE_READY_TIMEOUT_S": "77",
        "VLLM_LOGGING_LEVEL": "LOUD",
        "VLLM_USE_V1": "1",
        "OTHER": "1",
    }
    add_environment(adapted, variables)
    assert adapted.arguments[2:] == ["--api-key", "secret", "--start-timeout", "77"]
    bad, heeded, others = adapted.notes
    assert "VLLM_LOGGING_LEVEL" in bad
    assert "'LOUD'" in bad
    assert "VLLM_API_KEY" in heeded
    assert "secret" not in heeded
    assert others.endswith("without effect here: VLLM_USE_V1")


def test_flags_go_before_variables() -> None:
    given = ["--model", "m", "--api-key", "mine", "--start-timeout", "5"]
    adapted = Adapted(list(given))
    add_environment(adapted, {"VLLM_API_KEY": "x", "VLLM_ENGINE_READY_TIMEOUT_S": "9"})
    assert adapted == Adapted(given, [])
    adapted = Adapted(["--model", "m"])
    add_environment(adapted, {"VLLM_API_KEY": "x", API_KEY_VARIABLE: "y"})
    assert adapted.arguments == ["--model", "m"]


def test_roles_part_with_a_second_device() -> None:
    def chosen(devices: int, models: int = 1, *, fixed: bool = False) -> str:
        return " ".join(serve.roles(devices, models, fixed=fixed)[0])

    assert chosen(1) == chosen(3, 2) == "--prefill 0"
    assert chosen(2) == chosen(4, 2) == "--prefill 1 --decode 1"
    assert chosen(8) == "--prefill 2 --decode 6"
    assert chosen(8, fixed=True) == "--prefill 2"


def test_what_was_chosen_is_said(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "m"]) == 0
    assert "with --prefill 1" in capsys.readouterr().err
    assert main(["serve", "m", "--prefill", "1"]) == 0
    assert capsys.readouterr().err == ""
    assert [config.prefill for config in started] == [0, 1]


def test_the_longest_context_that_fits_is_what_auto_means() -> None:
    assert served("m --max-model-len auto") == served("m --max-model-len -1") == ["--model", "m"]
    assert served("m --max-model-len 8k") == ["--model", "m", "--max-model-len", "8000"]


def test_what_fits_is_said_and_passed_on(
    started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["serve", "models/demo", "--kv-cache-memory", "0.002", "--block-size", "8"]
    assert main(arguments) == 0
    (config,) = started
    said = capsys.readouterr().err
    assert f"{config.max_model_len} tokens are the longest context whose KV fits" in said
    assert 64 < config.max_model_len < 1000
    assert config.max_model_len % 8 == 0


def test_a_gpu_that_is_filled_to_the_brim_is_warned_of(
    started: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "visible_gpus", lambda: ("0",))
    monkeypatch.setattr(memory, "smallest_gpu", lambda _: 80 * 2**30)
    assert main(["serve", "models/demo", "--gpu-memory-utilization", "0.99"]) == 0
    assert "0.99 leaves no room" in capsys.readouterr().err
    assert main(["serve", "models/demo", "--gpu-memory-utilization", "0.98"]) == 0
    assert "leaves no room" not in capsys.readouterr().err


def test_an_image_says_where_to_listen_unless_a_flag_does(
    started: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAGEMESH_HOST", "0.0.0.0")
    assert main(["serve", "m"]) == main(["serve", "m", "--host", "127.0.0.2"]) == 0
    assert [config.host for config in started] == ["0.0.0.0", "127.0.0.2"]


def test_a_gguf_file_keeps_its_tokenizer(tmp_path: Path) -> None:
    path = write_small(tmp_path / "model.gguf")
    with pytest.raises(ConfigError, match="a GGUF file, which has its tokenizer and its settings"):
        make_variant(str(path), Changes(tokenizer="other"), HubConfig())
