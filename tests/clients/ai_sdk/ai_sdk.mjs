// The Vercel AI SDK against a server, through both of its providers.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";

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

await assert.rejects(generateText({ model: compatible("other"), ...asked }), (error) => {
  assert(APICallError.isInstance(error));
  assert.equal(error.statusCode, 404);
  assert.equal(error.isRetryable, false);
  return true;
});
console.log("ok errors");
