// Knows nothing of the mesh but its address: learns what it offers by reflection, and uses that.
import grpc from "@grpc/grpc-js";
import { GrpcReflection } from "grpc-js-reflection-client";

const [address] = process.argv.slice(2);
const credentials = grpc.credentials.createInsecure();
const reflection = new GrpcReflection(address, credentials);
const services = await reflection.listServices();
const descriptor = await reflection.getDescriptorBySymbol("pagemesh.v1.Inference");
const loaded = descriptor.getPackageObject({ keepCase: true, longs: Number, enums: String });
const { Inference } = loaded.pagemesh.v1;
const client = new Inference(address, credentials);
const deadline = () => ({ deadline: Date.now() + 30_000 });

const unary = (method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, deadline(), (error, answer) => (error ? reject(error) : resolve(answer))),
  );

function generate(request, onPiece = () => {}) {
  return new Promise((resolve) => {
    const pieces = [];
    const call = client.Generate(request, deadline());
    call.on("data", (piece) => {
      pieces.push(piece);
      onPiece(call);
    });
    call.on("error", ({ code, details }) => resolve({ pieces, code, details }));
    call.on("end", () => resolve({ pieces }));
  });
}

const chat = { messages: [{ role: "user", content: "What is the capital of France?" }] };
const answer = await generate({ model: "demo", chat });
const { token_ids } = await unary("Tokenize", { text: "Paris is nice" });
const { text } = await unary("Detokenize", { token_ids });
const { models } = await unary("ListModels", {});
const { embeddings } = await unary("Embed", { texts: ["one"] });
const wrong = await generate({ model: "nope", chat });
const sampling = { max_tokens: 1500, ignore_eos: true };
const cancelled = await generate({ model: "demo", text: "One", sampling }, (call) => call.cancel());

console.log(
  JSON.stringify({
    services,
    methods: Object.keys(Inference.service),
    text: answer.pieces.map((piece) => piece.text).join(""),
    finish_reason: answer.pieces.at(-1).finish_reason,
    usage: answer.pieces.at(-1).usage,
    back: text,
    models,
    embedding: embeddings[0].values.length,
    wrong: { code: wrong.code, details: wrong.details },
    cancelled: cancelled.code,
  }),
);
client.close();
process.exit(0);
