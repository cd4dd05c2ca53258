"""Has Milvus Lite find the texts nearest to another one by embeddings of a mesh; prints them as JSON."""

import json
import sys
from typing import Any

import openai
from pymilvus import MilvusClient

url, asked, *texts = sys.argv[1:]
mesh = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
milvus = MilvusClient("texts.db")


def embedded(inputs: list[str]) -> list[list[float]]:
    answer = mesh.embeddings.create(model="demo", input=inputs)
    return [each.embedding for each in answer.data]


vectors = embedded(texts)
milvus.create_collection("texts", dimension=len(vectors[0]), metric_type="COSINE")
rows: list[dict[str, Any]] = [
    {"id": index, "vector": vector, "text": text}
    for index, (vector, text) in enumerate(zip(vectors, texts, strict=True))
]
milvus.insert("texts", rows)
(hits,) = milvus.search("texts", data=embedded([asked]), limit=len(texts), output_fields=["text"])
print(
    json.dumps(
        {
            "width": len(vectors[0]),
            "found": [[hit["entity"]["text"], hit["distance"]] for hit in hits],
        }
    )
)
