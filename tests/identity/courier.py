"""What carries KV between two engines, as a prefill worker and a decode worker do."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pagemesh.core.kv import KvExport, KvGrant, KvProgress
from pagemesh.core.request import EngineRequest
from pagemesh.kv_transfer.frames import MAX_PAYLOAD_BYTES, PartCutter
from tests.identity.engines import DEADLINE, Peer, Steps, Tokens, next_step, running
from tests.support.kv_bytes import read_kv


@dataclass
class Transfer:
    """One prompt's KV on its way."""

    grant: KvGrant
    num_wanted_tokens: int
    """The transfer breaks off after this many tokens."""
    parts: PartCutter
    export: KvExport | None = None


class Courier:
    """Prefills on one engine and decodes on the other; every fourth transfer breaks off on the way.

    What can be read is carried at once, layer by layer where the prefilling engine says so.
    """

    def __init__(self, prefill: Peer, decode: Peer, requests: Sequence[EngineRequest]) -> None:
        self.prefill = prefill
        self.decode = decode
        self.requests = {request.request_id: request for request in requests}
        self.transfers: dict[str, Transfer] = {}
        self.breaking = set(list(self.requests)[3::4])
        self.num_received_tokens = 0
        self.num_early = 0
        """How often layers were carried whose step was still computing."""

    def run(self) -> Tokens:
        steps: Steps = queue.Queue()
        with (
            running(self.prefill, listener_queue=steps),
            running(self.decode, listener_queue=steps),
        ):
            for request in self.requests.values():
                self.decode.engine.submit(replace(request, await_kv=True))
            while len(self.decode.ends) < len(self.requests) or self.transfers:
                peer, output = next_step(steps, self.prefill, self.decode)
                peer.note(output)
                for grant in output.grants:
                    self.begin(grant)
                # As in the mesh, where the first token leaves before the KV that waits.
                if peer is self.prefill:
                    for item in output.outputs:
                        for token_id in item.token_ids:
                            logprobs = item.logprobs[0] if item.logprobs is not None else None
                            self.decode.engine.first_token(item.request_id, token_id, logprobs)
                for export in output.exports:
                    transfer = self.transfers[export.request_id]
                    assert export.block_hashes == transfer.grant.block_hashes
                    transfer.export = export
                for progress in output.progress:
                    self.carry(progress)
            self.settle()
        return {request_id: tuple(tokens) for request_id, tokens in self.decode.tokens.items()}

    def begin(self, grant: KvGrant) -> None:
        request = self.requests[grant.request_id]
        token_ids = (*request.prompt_token_ids, *request.resume_token_ids)
        num_wanted = num_tokens = len(token_ids)
        if grant.request_id in self.breaking:
            num_wanted = (grant.num_held_tokens + num_wanted) // 2
        parts = PartCutter(
            self.decode.engine.info.layout, grant.num_held_tokens, num_tokens, MAX_PAYLOAD_BYTES
        )
        self.transfers[grant.request_id] = Transfer(grant, num_wanted, parts)
        exported = replace(
            request, prompt_token_ids=token_ids, resume_token_ids=(), hold_blocks=True
        )
        self.prefill.engine.submit(exported)

    def carry(self, progress: KvProgress) -> None:
        """Copy what can be read, and end the transfer when that is enough."""
        transfer = self.transfers.get(progress.request_id)
        if transfer is None:
            return
        assert transfer.export is not None
        transfer.parts.add_ready(progress.num_tokens, progress.num_layers)
        while (part := transfer.parts.next_part()) is not None:
            run = slice(part.first_block, part.first_block + part.num_blocks)
            layers = part.first_layer, part.num_layers
            payload = read_kv(self.prefill.engine.kv, transfer.export.block_ids[run], *layers)
            self.decode.engine.kv.write(transfer.grant.block_ids[run], *layers, payload)
        layout = self.decode.engine.info.layout
        if progress.num_layers < layout.num_layers:
            self.num_early += 1
        elif progress.num_tokens >= transfer.num_wanted_tokens:
            self.end(transfer, progress.num_tokens // layout.block_size * layout.block_size)

    def end(self, transfer: Transfer, num_full_tokens: int) -> None:
        """Of the prompt, all was carried, or at least the blocks of so many tokens."""
        request_id, num_held = transfer.grant.request_id, transfer.grant.num_held_tokens
        num_valid = transfer.num_wanted_tokens
        if not transfer.parts.is_done:
            num_valid = max(num_held, min(num_valid, num_full_tokens))
        del self.transfers[request_id]
        self.num_received_tokens += num_valid - num_held
        self.prefill.engine.release(request_id)
        self.decode.engine.finish_import(request_id, num_valid)

    def check_first_tokens(self, expected: Tokens) -> None:
        """The first tokens were sampled by the prefilling engine, but where its work broke off before."""
        for request_id, token_ids in expected.items():
            first = list(token_ids[:1])
            sampled = self.prefill.tokens[request_id]
            assert sampled == first or (request_id in self.breaking and not sampled)

    def settle(self) -> None:
        """Wait until both engines ran the commands that end the leases."""
        for peer in (self.prefill, self.decode):
            peer.engine.pin("settle", ()).result(DEADLINE)
            peer.engine.release("settle")
