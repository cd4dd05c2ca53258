// Uses a mesh as a program with Vercel's AI SDK does; prints what came, as JSON.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const [url, question, place, sky] = process.argv.slice(2);
const mesh = createOpenAICompatible({
  name: "pagemesh",
  baseURL: `${url}/v1`,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const common = { model: mesh("demo"), temperature: 0, maxRetries: 0 };

const whole = await generateText({ ...common, prompt: question });

const stream = streamText({ ...common, prompt: question });
let streamed = "";
for await (const piece of stream.textStream) streamed += piece;

const heard = [];
const tools = {
  get_weather: tool({
    description: "The weather in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      heard.push(city);
      return sky;
    },
  }),
};
const agent = { ...common, tools, prompt: place, stopWhen: stepCountIs(3) };
const called = await generateText(agent);
const streamedCall = streamText(agent);
let streamedAnswer = "";
for await (const piece of streamedCall.textStream) streamedAnswer += piece;

const schema = z.object({ city: z.enum(["Paris", "Rome"]), sure: z.boolean() });
const structured = await generateObject({ ...common, schema, prompt: question });
const parts = streamObject({ ...common, schema, prompt: question });
for await (const part of parts.partialObjectStream) void part;

const embedded = await embedMany({
  model: mesh.embeddingModel("demo"),
  values: ["one", "two", "three"],
});

async function failure(action) {
  try {
    await action();
  } catch (error) {
    return { name: error.name, status: error.statusCode, message: error.message };
  }
  return null;
}

console.log(
  JSON.stringify({
    whole: { text: whole.text, reason: whole.finishReason, usage: whole.usage },
    streamed: { text: streamed, reason: await stream.finishReason, usage: await stream.usage },
    heard,
    called: called.text,
    streamedAnswer,
    structured: structured.object,
    streamedObject: await parts.object,
    embeddings: embedded.embeddings.map((each) => each.length),
    wrong: {
      model: await failure(() => generateText({ ...common, model: mesh("nope"), prompt: "a" })),
      field: await failure(() => generateText({ ...common, temperature: 9, prompt: "a" })),
    },
  }),
);
