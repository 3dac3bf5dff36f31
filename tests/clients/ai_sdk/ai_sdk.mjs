// The Vercel AI SDK against a server, through both of its providers.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, embedMany, generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

const model = process.env.OCTAVO_MODEL;
const expected = JSON.parse(process.env.OCTAVO_EXPECTED);
const where = { baseURL: process.env.OCTAVO_URL, apiKey: process.env.OCTAVO_KEY };
const compatible = createOpenAICompatible({ name: "octavo", includeUsage: true, ...where });
const openai = createOpenAI(where);
const asked = { prompt: "Hello", maxOutputTokens: 16, temperature: 0, maxRetries: 0 };

const models = {
  "a chat of the compatible provider": [compatible(model), expected.chat],
  "a completion of the compatible provider": [compatible.completionModel(model), undefined],
  "a chat of the openai provider": [openai.chat(model), expected.chat],
  "a response of the openai provider": [openai.responses(model), expected.chat],
};

for (const [name, [one, text]] of Object.entries(models)) {
  const plain = await generateText({ model: one, ...asked });
  if (text !== undefined) assert.equal(plain.text, text, name);
  assert.equal(plain.finishReason, "length", name);
  const streamed = streamText({ model: one, ...asked });
  let joined = "";
  for await (const delta of streamed.textStream) joined += delta;
  assert.equal(joined, plain.text, name);
  assert.equal((await streamed.usage).outputTokens, 16, name);
  console.log(`ok ${name}`);
}

const verdict = z.object({ colour: z.enum(["red", "green"]), sure: z.boolean() });
const longer = { ...asked, maxOutputTokens: 1200 };
const capable = createOpenAICompatible({ name: "octavo", supportsStructuredOutputs: true, ...where });
for (const one of [capable(model), openai.chat(model), openai.responses(model)]) {
  const tools = { paint: tool({ description: "Paints.", inputSchema: verdict }) };
  const called = await generateText({ model: one, ...longer, tools, toolChoice: { type: "tool", toolName: "paint" } });
  assert.equal(called.finishReason, "tool-calls");
  verdict.parse(called.toolCalls[0].input);
  const streamed = streamText({ model: one, ...longer, tools, toolChoice: { type: "tool", toolName: "paint" } });
  assert.deepEqual((await streamed.toolCalls)[0].input, called.toolCalls[0].input);
  const object = await generateText({ model: one, ...longer, output: Output.object({ schema: verdict }) });
  verdict.parse(object.output);
}
console.log("ok tools and objects");

const { embeddings } = await embedMany({
  model: compatible.textEmbeddingModel(model),
  values: ["Hello", "Hello world"],
  maxRetries: 0,
});
assert.equal(embeddings.length, 2);
console.log("ok embeddings");

await assert.rejects(generateText({ model: compatible("other"), ...asked }), (error) => {
  assert(APICallError.isInstance(error));
  assert.equal(error.statusCode, 404);
  assert.equal(error.isRetryable, false);
  return true;
});
console.log("ok errors");
