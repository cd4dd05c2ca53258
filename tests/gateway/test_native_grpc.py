"""gRPC clients on the gateway's port: nothing of theirs is touched."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.api import httpbody_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from pagemesh.v1 import inference_pb2, inference_pb2_grpc, openai_pb2_grpc
from tests.gateway.conftest import Gateway


@pytest.fixture
def channel(gateway: Gateway) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(gateway.address) as channel:
        yield channel


def test_the_typed_api_passes(channel: grpc.Channel) -> None:
    call = inference_pb2_grpc.InferenceStub(channel).Generate(
        inference_pb2.GenerateRequest(text="hello"), timeout=5
    )
    assert [answer.text for answer in call] == ["hello"]
    assert dict(call.initial_metadata())["x-http-status"] == "418"


def test_a_status_after_messages_passes(channel: grpc.Channel) -> None:
    call = inference_pb2_grpc.InferenceStub(channel).Generate(
        inference_pb2.GenerateRequest(model="abort", text="hello"), timeout=5
    )
    assert next(call).text == "hello"
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == "no such model"


def test_a_status_without_messages_passes(channel: grpc.Channel) -> None:
    call = openai_pb2_grpc.OpenAIStub(channel).ChatCompletions(
        httpbody_pb2.HttpBody(data=b'{"model": "abort:INTERNAL"}'), timeout=5
    )
    with pytest.raises(grpc.RpcError) as caught:
        next(call)
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert caught.value.details() == 'not "now",\n100 % ü'


def test_health_and_reflection_pass(channel: grpc.Channel) -> None:
    stub: Any = health_pb2_grpc.HealthStub(channel)  # the stubs know no methods
    answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    services = ProtoReflectionDescriptorDatabase(channel).get_services()
    assert list(services) == ["pagemesh.v1.OpenAI"]
