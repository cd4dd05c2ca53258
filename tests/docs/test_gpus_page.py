"""The page about GPUs on Kubernetes: its values render, and fit the pool of machines that the page shows."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import jsonschema
import pytest
import yaml

from tests.charts.rendering import Rendered
from tests.docs.blocks import all_blocks

PAGE = "docs/deployment/gpus-on-kubernetes.md"
NOTICE_S = 120
"""Of a Spot machine, on the cloud that the page is about."""

TAGS = {
    "type": "array",
    "items": {"required": ["tags"], "additionalProperties": False, "properties": {"tags": {}}},
}


def closed(required: str, **properties: Any) -> dict[str, Any]:
    names = required.split()
    return {
        "type": "object",
        "additionalProperties": False,
        "required": names,
        "properties": properties,
    }


DURATION = {"type": "string", "pattern": "^([0-9]+(s|m|h))+$"}
KEY_OF = {
    "type": "array",
    "items": closed("key effect", key={}, value={}, effect={"enum": ["NoSchedule"]}),
}
REQUIREMENT = closed(
    "key operator values",
    key={},
    operator={"enum": ["In"]},
    values={"type": "array", "items": {"type": "string"}},
)
SPECS = {
    "karpenter.sh/v1": closed(
        "template",
        template=closed(
            "spec",
            spec=closed(
                "nodeClassRef requirements",
                nodeClassRef=closed("group kind name", group={}, kind={}, name={}),
                requirements={"type": "array", "items": REQUIREMENT},
                taints=KEY_OF,
                expireAfter=DURATION,
                terminationGracePeriod=DURATION,
            ),
        ),
        disruption=closed(
            "consolidateAfter",
            consolidationPolicy={"enum": ["WhenEmpty", "WhenEmptyOrUnderutilized", "Balanced"]},
            consolidateAfter=DURATION,
        ),
        limits={"type": "object"},
    ),
    "karpenter.k8s.aws/v1": closed(
        "amiSelectorTerms subnetSelectorTerms securityGroupSelectorTerms",
        role={"type": "string"},
        amiSelectorTerms={
            "type": "array",
            "items": closed("alias", alias={"pattern": "^(al2023|bottlerocket)@.+$"}),
        },
        subnetSelectorTerms=TAGS,
        securityGroupSelectorTerms=TAGS,
        blockDeviceMappings={
            "type": "array",
            "items": closed(
                "deviceName ebs",
                deviceName={},
                ebs=closed(
                    "volumeSize",
                    volumeSize={"pattern": "^[0-9]+Gi$"},
                    volumeType={"enum": ["gp3"]},
                    encrypted={"type": "boolean"},
                ),
            ),
        },
    ),
}
"""What Karpenter's own definitions have of the fields that the page uses."""


@cache
def documents() -> list[dict[str, Any]]:
    texts = [block.text for block in all_blocks() if block.document == PAGE]
    return [loaded for text in texts for loaded in yaml.safe_load_all(text)]


def values() -> list[dict[str, Any]]:
    """Of the chart: a whole role each."""
    return [each for each in documents() if "decode" in each]


def karpenters(kind: str) -> dict[str, Any]:
    [found] = [each for each in documents() if each.get("kind") == kind]
    return found


def seconds(duration: str) -> int:
    units = {"s": 1, "m": 60, "h": 3600}
    return sum(int(number) * units[unit] for number, unit in re.findall(r"(\d+)([smh])", duration))


@pytest.mark.parametrize("kind", ["NodePool", "EC2NodeClass"])
def test_karpenters_objects_have_its_fields(kind: str) -> None:
    found = karpenters(kind)
    jsonschema.validate(found["spec"], SPECS[found["apiVersion"]])


def test_the_pool_is_of_the_class_of_machines_on_the_page() -> None:
    group, _ = karpenters("EC2NodeClass")["apiVersion"].split("/")
    reference = karpenters("NodePool")["spec"]["template"]["spec"]["nodeClassRef"]
    name = karpenters("EC2NodeClass")["metadata"]["name"]
    assert reference == {"group": group, "kind": "EC2NodeClass", "name": name}


def test_each_set_of_values_asks_for_one_gpu_by_its_name_and_for_its_share() -> None:
    found = []
    for each in values():
        container = Rendered(each).container("decode")
        arguments = container["args"]
        share = None
        if "--gpu-memory-utilization" in arguments:
            share = arguments[arguments.index("--gpu-memory-utilization") + 1]
        found.append((container["resources"]["limits"].keys() - {"memory"}, share))
    whole = ({"nvidia.com/gpu"}, None)
    divided = ({"nvidia.com/mig-3g.40gb"}, "0.9")
    shared = ({"nvidia.com/gpu.shared"}, "0.45")
    assert found == [whole, divided, shared, whole]


def test_shares_of_workers_that_take_turns_leave_something() -> None:
    [plugin] = [each for each in documents() if each.get("kind") == "ConfigMap"]
    config = yaml.safe_load(plugin["data"]["any"])
    slicing = config["sharing"]["timeSlicing"]
    [shared] = [each for each in values() if "shared" in each["decode"].get("gpuResource", "")]
    [resource] = slicing["resources"]
    assert slicing["renameByDefault"]
    assert shared["decode"]["gpuResource"] == f"{resource['name']}.shared"
    assert resource["replicas"] * shared["decode"]["gpuMemoryUtilization"] < 1


def test_workers_alone_go_to_the_pool_and_end_within_the_notice() -> None:
    rendered = Rendered(values()[-1])
    pool = karpenters("NodePool")
    template = pool["spec"]["template"]["spec"]
    [taint] = template["taints"]
    toleration = {"key": taint["key"], "operator": "Exists", "effect": taint["effect"]}
    for role in ("prefill", "decode"):
        pod = rendered.pod(role)
        assert pod["nodeSelector"] == {"karpenter.sh/nodepool": pool["metadata"]["name"]}
        assert toleration in pod["tolerations"]
        # Where a budget is used up, pods are told to stop so long before the node's end.
        ends_after = pod["terminationGracePeriodSeconds"]
        assert ends_after == 70
        assert ends_after < seconds(template["terminationGracePeriod"]) < NOTICE_S
        workload = next(found for name, found, _ in rendered.workloads() if name == role)
        [budget] = [
            each["spec"]["maxUnavailable"]
            for each in rendered.of_kind("PodDisruptionBudget")
            if each["metadata"]["name"] == workload["metadata"]["name"]
        ]
        assert budget == 2
        assert workload["spec"]["replicas"] >= 2
    for role in ("gateway", "router", "kvstore"):
        assert toleration not in rendered.pod(role).get("tolerations", [])
