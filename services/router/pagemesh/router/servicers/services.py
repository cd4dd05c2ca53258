"""All services of a router's server."""

from __future__ import annotations

from typing import Final

from pagemesh.config import RouterConfig
from pagemesh.router.console.state import MeshState
from pagemesh.router.generation.admission import Admission
from pagemesh.router.mesh_view import MeshView
from pagemesh.router.models import Models
from pagemesh.router.servicers.anthropic import AnthropicServicer
from pagemesh.router.servicers.console import ConsoleServicer
from pagemesh.router.servicers.inference import InferenceServicer
from pagemesh.router.servicers.openai import OpenAIServicer
from pagemesh.rpc.server import GrpcServer
from pagemesh.v1 import (
    anthropic_pb2_grpc,
    console_pb2_grpc,
    inference_pb2_grpc,
    openai_pb2_grpc,
)

SERVICE_NAMES: Final = (
    "pagemesh.v1.Anthropic",
    "pagemesh.v1.Console",
    "pagemesh.v1.Inference",
    "pagemesh.v1.OpenAI",
)


def add_services(
    server: GrpcServer,
    models: Models,
    admission: Admission,
    mesh: MeshView,
    state: MeshState,
    config: RouterConfig,
) -> None:
    """Have the server serve them."""
    timeout, explains = config.request_timeout, config.routing.explain_routes
    openai = OpenAIServicer(models, admission, mesh, timeout, explains_routes=explains)
    server.add(openai_pb2_grpc.add_OpenAIServicer_to_server, openai)
    anthropic = AnthropicServicer(models, admission, timeout, explains_routes=explains)
    server.add(anthropic_pb2_grpc.add_AnthropicServicer_to_server, anthropic)
    inference = InferenceServicer(models, admission, timeout, explains_routes=explains)
    server.add(inference_pb2_grpc.add_InferenceServicer_to_server, inference)
    console = ConsoleServicer(models, mesh, state, admission)
    server.add(console_pb2_grpc.add_ConsoleServicer_to_server, console)
