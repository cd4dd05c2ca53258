"""Settings to arguments and back, and one sentence for arguments that are wrong."""

from __future__ import annotations

from typing import Any

import pytest

from pagemesh.cli.arguments import UsageError, parse, to_arguments
from pagemesh.cli.settings import UpConfig
from pagemesh.config import (
    CacheConfig,
    CorsConfig,
    GatewayConfig,
    HardwareConfig,
    HttpLimitsConfig,
    HubConfig,
    KvStoreConfig,
    MemberConfig,
    MeshTlsConfig,
    ModelConfig,
    RouterConfig,
    RoutingConfig,
    SchedulerConfig,
    ServerConfig,
    TlsConfig,
    TracesConfig,
    WorkerConfig,
)
from pagemesh.errors import ConfigError

HUB = HubConfig("v2", "/models")
WORKER = WorkerConfig(
    ModelConfig("models/demo", "name", "bfloat16", 128, 3),
    HardwareConfig("cuda", 0.5, True),
    CacheConfig(8, 0.5, "fp8", 1.5, False),
    SchedulerConfig(4, 32),
    MemberConfig("a:1", "decode-0", "b:2", False),
    ServerConfig("::1", 5, 0, 1.5, "debug", "console"),
    TracesConfig("https://c/v1/traces", 0.25, "http/protobuf"),
)


@pytest.mark.parametrize(
    "settings",
    [
        UpConfig(),
        UpConfig(
            ("m",),
            ("n", "o"),
            ("p=n:0.5",),
            "float16",
            99,
            "transformers",
            "awq_marlin",
            0,
            2,
            3,
            4,
            "redis://h:1/2",
            "::",
            80,
            7,
            8,
            9,
            False,
            True,
            HUB,
            HardwareConfig("cpu"),
            CacheConfig(4),
            log_dir="logs",
        ),
        UpConfig(("m", "o=n"), model_alias=("p=m,o:2",)),
        WORKER,
        WorkerConfig(ModelConfig("m")),
        RouterConfig(
            ("m",),
            ("n", "o"),
            ("p=n:2",),
            "a:1",
            5.0,
            7,
            8,
            HUB,
            RoutingConfig("round_robin", 0, 0.5, ("decode_load=1",)),
        ),
        KvStoreConfig(ServerConfig(port=9, mesh=MeshTlsConfig("c", "k", "a")), 0.25),
        GatewayConfig(
            ("a:1", "b:2"),
            "0.0.0.0",
            80,
            9090,
            "/run/http.sock",
            "/run/x.sock",
            "-",
            "console",
            True,
            4,
            5.0,
            ("json",),
            TlsConfig("c.pem", "k.pem", "ca.pem", 1),
            CorsConfig(("https://a", "https://b"), (), ('["x-a"]',), True),
            HttpLimitsConfig(1, 2, 3, 4, 5.0, 6.0),
            MeshTlsConfig("c.pem", "k.pem", "ca.pem"),
        ),
        GatewayConfig(("a:1",), print_config=()),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_settings_survive_the_way_over_the_command_line(settings: Any) -> None:
    assert parse(type(settings), "pagemesh x", "", to_arguments(settings)) == settings


def test_arguments_leave_defaults_out() -> None:
    assert to_arguments(UpConfig(port=8001, cache=CacheConfig(enable_prefix_caching=False))) == [
        "--port",
        "8001",
        "--no-enable-prefix-caching",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--prot", "1"], "Unrecognized options: --prot, 1; see pagemesh up --help"),
        (["extra"], "Unrecognized options: extra; see pagemesh up --help"),
        (
            ["--port", "abc"],
            "Error parsing --port: invalid literal for int() with base 10: 'abc'; "
            "see pagemesh up --help",
        ),
        (
            ["--policy", "best"],
            "invalid choice 'best' for argument '--policy'. Expected one of ('kv_aware', "
            "'prefix_hash', 'least_loaded', 'round_robin'); see pagemesh up --help",
        ),
        (
            ["--port"],
            "Missing value for argument '--port'. Expected 1 values; see pagemesh up --help",
        ),
    ],
)
def test_arguments_that_cannot_be_understood(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        parse(UpConfig, "pagemesh up", "", arguments)
    assert str(caught.value) == sentence
    assert capsys.readouterr() == ("", "")


def test_a_refused_value_names_the_flag() -> None:
    with pytest.raises(ConfigError, match="--decode is 0, but must be at least 1"):
        parse(UpConfig, "pagemesh up", "", ["--decode", "0"])


def test_help_comes_from_the_texts_below_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(UpConfig, "pagemesh up", "a whole mesh", ["--help"])
    assert caught.value.code == 0
    printed = capsys.readouterr().out
    assert "a whole mesh" in printed
    assert "--block-size INT" in printed
    assert "Tokens per KV block. (default: 16)" in printed
