"""Uses a mesh as a program with LlamaIndex does; prints what came, as JSON."""

import asyncio
import json
import sys
from typing import Any, Literal

from llama_index.core import Document, VectorStoreIndex
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

url, question, place, sky, *texts = sys.argv[1:]


class Answer(BaseModel):
    """Which city it is."""

    city: Literal["Paris", "Rome"]


def model(name: str = "demo", **settings: Any) -> OpenAILike:
    common = {"api_base": f"{url}/v1", "api_key": "none", "max_retries": 0, "temperature": 0}
    return OpenAILike(model=name, context_window=2048, **{**common, **settings})


heard: list[str] = []


def get_weather(city: str) -> str:
    """The weather in a city."""
    heard.append(city)
    return sky


async def agent(chat: OpenAILike) -> list[str]:
    tool = FunctionTool.from_defaults(get_weather)
    answer = await FunctionAgent(tools=[tool], llm=chat, streaming=False).run(place)
    streamed = await FunctionAgent(tools=[tool], llm=chat, streaming=True).run(place)
    return [str(answer), str(streamed)]


def failure(action: Any) -> dict[str, Any]:
    try:
        action()
    except Exception as error:
        return {"kind": type(error).__name__, "message": str(error)}
    return {}


chat = model(is_chat_model=True, is_function_calling_model=True)
conversation = [ChatMessage(role="user", content=question)]
whole = chat.chat(conversation)
pieces = [piece.delta for piece in chat.stream_chat(conversation)]
calls = chat.get_tool_calls_from_response(
    chat.chat_with_tools([FunctionTool.from_defaults(get_weather)], user_msg=place)
)
plain = model(max_tokens=2)
embedding = OpenAILikeEmbedding(model_name="demo", api_base=f"{url}/v1", api_key="none")
index = VectorStoreIndex.from_documents(
    [Document(text=text) for text in texts], embed_model=embedding
)
print(
    json.dumps(
        {
            "whole": whole.message.content,
            "streamed": "".join(piece or "" for piece in pieces),
            "completed": plain.complete("The capital of France is").text,
            "completion_streamed": [
                each.text for each in plain.stream_complete("The capital of France is")
            ][-1],
            "calls": [[call.tool_name, call.tool_kwargs] for call in calls],
            "agent": asyncio.run(agent(chat)),
            "heard": heard,
            "structured": chat.structured_predict(Answer, PromptTemplate(question)).city,
            "embedding": len(embedding.get_text_embedding(texts[0])),
            "found": [
                node.text for node in index.as_retriever(similarity_top_k=1).retrieve(texts[1])
            ],
            "wrong": failure(lambda: model("nope", is_chat_model=True).chat(conversation)),
        }
    )
)
