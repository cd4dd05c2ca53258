// Uses a mesh as any program with OpenAI's client does; prints what came, as JSON.
import OpenAI from "openai";

const [url] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const model = "demo";
const messages = [{ role: "user", content: "What is the capital of France?" }];

async function failure(action) {
  try {
    await action();
  } catch (error) {
    const { status, code, param, message, requestID } = error;
    return { kind: error.constructor.name, status, code, param, message, requestID };
  }
  return null;
}

const whole = await client.chat.completions.create({ model, messages, temperature: 0 });

let streamed = "";
let usage = null;
const stream = await client.chat.completions.create({
  model,
  messages,
  temperature: 0,
  stream: true,
  stream_options: { include_usage: true },
});
for await (const chunk of stream) {
  streamed += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}

const collected = await client.chat.completions
  .stream({ model, messages, temperature: 0, n: 2 })
  .finalChatCompletion();

const scored = await client.chat.completions.create({
  model,
  messages,
  temperature: 0,
  logprobs: true,
  top_logprobs: 2,
});

const completion = await client.completions.create({
  model,
  prompt: ["The capital of France is", "The capital of Japan is"],
  max_tokens: 2,
  temperature: 0,
});

const schema = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const structured = await client.chat.completions.create({
  model,
  messages,
  temperature: 0,
  response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } },
});

const embedding = await client.embeddings.create({ model, input: ["one", "two"] });

const models = [];
for await (const each of client.models.list()) models.push(each.id);

const wrong = {
  model: await failure(() => client.chat.completions.create({ model: "nope", messages })),
  field: await failure(() => client.chat.completions.create({ model, messages, temperature: 9 })),
  route: await failure(() => client.post("/nope", { body: {} })),
  stream: await failure(() => client.chat.completions.create({ model, messages: [], stream: true })),
};

const controller = new AbortController();
const left = await client.chat.completions.create(
  { model, messages, max_tokens: 1500, ignore_eos: true, stream: true },
  { signal: controller.signal },
);
for await (const chunk of left) {
  if (chunk.choices[0]?.delta.content) controller.abort();
}

console.log(
  JSON.stringify({
    whole,
    streamed,
    usage,
    collected,
    scored: scored.choices[0].logprobs,
    completion: completion.choices.map((choice) => choice.text),
    structured: structured.choices[0].message.content,
    embedding: embedding.data.map((each) => each.embedding.length),
    models,
    wrong,
  }),
);
