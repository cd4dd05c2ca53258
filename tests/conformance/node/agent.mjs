// Has OpenAI's client run a tool for the model until it answers; prints what came, as JSON.
import OpenAI from "openai";

const [url, question, sky] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const heard = new Set();
const getWeather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city.",
    parameters: {
      type: "object",
      properties: { city: { type: "string" } },
      required: ["city"],
      additionalProperties: false,
    },
    parse: JSON.parse,
    function: ({ city }) => {
      heard.add(city);
      return sky;
    },
  },
};
const asked = {
  model: "demo",
  messages: [{ role: "user", content: question }],
  tools: [getWeather],
  temperature: 0,
};

const whole = await client.chat.completions.runTools(asked).finalContent();
const streamed = await client.chat.completions.runTools({ ...asked, stream: true }).finalContent();
console.log(JSON.stringify({ heard: [...heard], whole, streamed }));
