"""Brings the constraints of structured outputs to the engine thread, which never waits for a grammar."""

from __future__ import annotations

import time
from functools import partial

import structlog

from pagemesh.core.request import EngineRequest
from pagemesh.engine.loop import CommandQueue
from pagemesh.errors import InternalError, PagemeshError, UnsupportedError
from pagemesh.models.loader import LoadedModel
from pagemesh.sampling.structured.compiler import GrammarCompiler, GrammarFuture
from pagemesh.sampling.structured.constraint import GrammarBackend, TokenConstraint, start_after
from pagemesh.sampling.structured.outputs import PARAM
from pagemesh.scheduler.request_table import ConstraintGate

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def no_backend() -> GrammarBackend:
    """For engines that know no tokenizer."""
    raise UnsupportedError("this engine cannot give structured output", param=PARAM)


class ConstraintSource:
    """Has grammars compiled and puts each request's constraint into the engine's commands."""

    def __init__(
        self, compiler: GrammarCompiler, commands: CommandQueue, gate: ConstraintGate
    ) -> None:
        self._compiler = compiler
        self._commands = commands
        self._gate = gate
        self._compiling: dict[str, tuple[EngineRequest, GrammarFuture]] = {}

    def prepare(self, request: EngineRequest) -> None:
        """See to it that a request whose submission is queued gets its constraint, if it needs one."""
        outputs = request.sampling.structured_outputs
        if outputs is not None:
            asked_at = time.perf_counter()
            compiled = self._compiler.compile(outputs)
            is_kept = compiled.done()
            self._compiling[request.request_id] = (request, compiled)
            compiled.add_done_callback(
                partial(self._hand_over, request, None if is_kept else asked_at)
            )

    def withdraw(self, request_id: str, *, exports_only: bool = False) -> None:
        """A request ends: its grammar need not be compiled for it. Other ids are ignored."""
        known = self._compiling.get(request_id)
        if known is None or (exports_only and not known[0].hold_blocks):
            return
        request, compiled = known
        outputs = request.sampling.structured_outputs
        # Several threads may end a request: one of them takes it.
        if self._compiling.pop(request_id, None) is known and outputs is not None:
            self._compiler.withdraw(outputs, compiled)

    def close(self) -> None:
        """Compile nothing any more. Idempotent."""
        self._compiler.close()

    def _hand_over(
        self, request: EngineRequest, asked_at: float | None, compiled: GrammarFuture
    ) -> None:
        """On the thread that asked or that compiled: resumed tokens are replayed here as well."""
        self._compiling.pop(request.request_id, None)
        if compiled.cancelled():
            return
        outcome: TokenConstraint | PagemeshError
        try:
            outcome = start_after(compiled.result(), request.resume_token_ids)
        except PagemeshError as error:
            outcome = error
        except Exception as error:
            # Boundary to the library: the request would wait for ever.
            log.exception("constraint could not be made", request_id=request.request_id)
            outcome = InternalError(f"the constraint could not be made: {type(error).__name__}")
        waited = None if asked_at is None else time.perf_counter() - asked_at
        self._commands.put(partial(self._gate.open, request, outcome, waited))


def make_compiler(model: LoadedModel) -> GrammarCompiler:
    """A compiler for the model's vocabulary."""
    return GrammarCompiler(partial(load_backend, model))


def load_backend(model: LoadedModel) -> GrammarBackend:
    """What compiles grammars for a model; UnsupportedError when its tokenizer is of no use for that."""
    # Here, because few engines ever need the library and the tokenizer.
    from pagemesh.sampling.structured.guidance import GuidanceBackend

    return GuidanceBackend(model.folder, model.vocab_size, model.eos_token_ids)
