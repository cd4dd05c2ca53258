"""What `pagemesh up` is told reaches the parts that have a setting of the same name."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from pagemesh.cli.arguments import parse
from pagemesh.cli.settings import UpConfig
from pagemesh.cli.up.plan import make_plan, num_ports
from pagemesh.config import GatewayConfig, KvStoreConfig, RouterConfig, WorkerConfig

# One of each group at least.
FLAGS = """
    --model m/demo --served-model-name tiny --model-alias chat=tiny --index redis://127.0.0.1:6379/1
    --host 0.0.0.0 --port 8123 --stream-interval 3 --max-waiting-requests 77 --revision v2 --enforce-eager --block-size 8
    --max-num-seqs 3 --policy round_robin --migration-limit 7 --traces-sample-ratio 0.5
    --generation-config vllm --enable-log-requests --trust-request-chat-template --enable-tokenizer-info-endpoint
    --allowed-origins https://a.example --max-body-size 7
"""
# Of the same name, and something else: addresses instead of a number; the parts' own, not the gateway's; certificates
# of the mesh and of clients; keys, which nobody is to read on a command line; a worker's model, one of several.
SOMETHING_ELSE = {
    KvStoreConfig: set[str](),
    RouterConfig: {"kvstore", "tenants"},
    WorkerConfig: {"model"},
    GatewayConfig: {"grace_period", "tls"},
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kvstore", KvStoreConfig),
        ("router", RouterConfig),
        ("decode-0", WorkerConfig),
        ("gateway", GatewayConfig),
    ],
)
def test_a_setting_reaches_the_parts_that_have_it(
    name: str,
    kind: type[KvStoreConfig] | type[RouterConfig] | type[WorkerConfig] | type[GatewayConfig],
) -> None:
    told = parse(UpConfig, "pagemesh up", "", FLAGS.split())
    mesh = make_plan(told, range(20000, 20000 + num_ports(told)), Path("/run/pagemesh"), None)
    (part,) = (part for part in mesh.parts if part.name == name)
    words = list(part.command)
    got = parse(kind, "pagemesh", "", words[words.index("pagemesh.cli") + 2 :])
    both = {field.name for field in fields(UpConfig)} & {field.name for field in fields(kind)}
    shared = sorted(both - SOMETHING_ELSE[kind])
    default = UpConfig()
    unchanged = [each for each in shared if getattr(told, each) == getattr(default, each)]
    assert unchanged == [], "no flag above is about them"
    assert {each: getattr(got, each) for each in shared} == {
        each: getattr(told, each) for each in shared
    }
