"""`Inference.Embed`: from its message to the embedding path and back."""

from __future__ import annotations

from pagemesh.errors import InvalidRequestError
from pagemesh.router.call import Call
from pagemesh.router.embedding.vectors import MAX_INPUTS, PromptEmbedder, unpack
from pagemesh.v1 import inference_pb2


async def embed_texts(
    embedder: PromptEmbedder, request: inference_pb2.EmbedRequest, call: Call
) -> inference_pb2.EmbedResponse:
    """The answer to a request; InvalidRequestError for no texts, too many, or one without tokens."""
    if not 0 < len(request.texts) <= MAX_INPUTS:
        raise InvalidRequestError(
            f"texts has {len(request.texts)} entries, but must have 1 to {MAX_INPUTS}",
            param="texts",
        )
    embeddings = await embedder.embed(list(request.texts), "texts", call)
    return inference_pb2.EmbedResponse(
        embeddings=[
            inference_pb2.Embedding(values=unpack(vector)) for vector in embeddings.vectors
        ],
        usage=inference_pb2.Usage(
            prompt_token_count=embeddings.num_prompt_tokens,
            cached_token_count=embeddings.num_cached_tokens,
        ),
    )
