"""Keys on the command line: made by `pagemesh keys new`, handed to the parts by `pagemesh up`, shown to people."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from pagemesh.cli.arguments import parse
from pagemesh.cli.main import main
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.console import Console
from pagemesh.cli.up.credentials import Credentials
from pagemesh.cli.up.plan import make_plan
from pagemesh.config import GatewayConfig, RouterConfig, TenantsConfig
from pagemesh.config.environment import API_KEY_VARIABLE
from pagemesh.router.tenants.keys import hash_of

KEY = "pm-0123456789abcdef"
PORTS = range(20000, 21000)


@pytest.fixture(autouse=True)
def no_key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(API_KEY_VARIABLE, raising=False)


def test_a_new_key_is_printed_alone_and_its_hash_is_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "keys.yaml"
    assert main(["keys", "new", "--tenant", "acme", "--file", str(path)]) == 0
    printed = capsys.readouterr()
    key = printed.out.strip()
    assert key.startswith("pm-")
    assert key not in printed.err + path.read_text()
    assert yaml.safe_load(path.read_text()) == {"tenants": {"acme": {"keys": [hash_of(key)]}}}


def test_without_a_file_the_lines_for_it_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--tenant", "acme"]) == 0
    printed = capsys.readouterr()
    lines = printed.err.partition("\n")[2]
    assert yaml.safe_load(lines) == {"tenants": {"acme": {"keys": [hash_of(printed.out.strip())]}}}


def test_a_file_that_cannot_be_used_costs_no_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["keys", "new", "--tenant", "acme", "--file", str(tmp_path)]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"pagemesh keys: --file is '{tmp_path}', which cannot be read")


def test_keys_reach_routers_in_their_environment_and_nobodys_command_line() -> None:
    limits = TenantsConfig(
        requests_per_minute=60,
        max_output_tokens=9,
        max_output_tokens_policy="refuse",
        limits_shared_by=6,
    )
    tenants = replace(limits, api_key=(KEY, "other"), limits_shared_by=2)
    config = UpConfig(router=3, tenants=tenants)
    plan = make_plan(config, PORTS, Path("/run/pagemesh"), access_log=None)
    assert KEY not in str([part.command for part in plan.parts])
    assert KEY not in repr(plan)
    for part in plan.parts:
        expected = f"{KEY},other" if part.name.startswith("router") else None
        assert part.environment.get(API_KEY_VARIABLE) == expected
        arguments = part.command[part.command.index("pagemesh.cli") + 2 :]
        if part.name == "gateway":
            assert parse(GatewayConfig, "", "", arguments).api_key_required
        if part.name == "router-0":
            told = parse(RouterConfig, "", "", arguments).tenants
            assert told == limits


def test_the_gateway_lets_everybody_through_where_no_keys_are_asked_for() -> None:
    plan = make_plan(UpConfig(), PORTS, Path("/run/pagemesh"), access_log=None)
    (gateway,) = [part for part in plan.parts if part.name == "gateway"]
    assert "--api-key-required" not in gateway.command


@pytest.mark.parametrize(
    ("config", "environment", "curl", "python"),
    [
        (TenantsConfig(), "", "completions -H 'content", 'api_key="none"'),
        (
            TenantsConfig(api_key=(KEY,)),
            "",
            f'completions -H "authorization: Bearer {KEY}" -H',
            f'api_key="{KEY}"',
        ),
        (
            TenantsConfig(),
            "secret-one,two",
            'completions -H "authorization: Bearer $PAGEMESH_API_KEY" -H',
            'api_key=os.environ["PAGEMESH_API_KEY"]',
        ),
        (
            TenantsConfig(api_key_file="keys.yaml"),
            "",
            'completions -H "authorization: Bearer $PAGEMESH_API_KEY" -H',
            'api_key=os.environ["PAGEMESH_API_KEY"]',
        ),
    ],
    ids=["open", "flag", "environment", "file"],
)
def test_the_banner_shows_how_to_send_a_key_but_no_secret(
    config: TenantsConfig,
    environment: str,
    curl: str,
    python: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(API_KEY_VARIABLE, environment)
    Console().banner("http://here", "demo", Credentials.of(config))
    printed = capsys.readouterr().out
    assert curl in printed
    assert python in printed
    assert "import os" in printed or "os.environ" not in printed
    assert "secret-one" not in printed
