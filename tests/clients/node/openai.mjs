// The openai package for Node against a server: what it sends is taken, and what it gets is what it expects.
import assert from "node:assert/strict";
import OpenAI from "openai";

const model = process.env.OCTAVO_MODEL;
const expected = JSON.parse(process.env.OCTAVO_EXPECTED);
const options = { baseURL: process.env.OCTAVO_URL, apiKey: process.env.OCTAVO_KEY, maxRetries: 0 };
const client = new OpenAI(options);
const parameters = {
  type: "object",
  properties: { colour: { type: "string", enum: ["red", "green"] }, sure: { type: "boolean" } },
  required: ["colour", "sure"],
  additionalProperties: false,
};
const tools = [{ type: "function", function: { name: "paint", description: "Paints.", parameters } }];
const messages = [{ role: "user", content: "Hello" }];
const asked = { model, messages, max_tokens: 16, temperature: 0 };

const cases = {
  async "models are listed and retrieved"() {
    const ids = [];
    for await (const one of await client.models.list()) ids.push(one.id);
    assert.deepEqual(ids, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
  },

  async "a completion, plain and streamed"() {
    const fields = { model, prompt: "Hello", max_tokens: 16, temperature: 0 };
    const plain = await client.completions.create(fields);
    assert.equal(plain.choices[0].text, expected.completion);
    let text = "";
    for await (const chunk of await client.completions.create({ ...fields, stream: true })) {
      text += chunk.choices[0].text;
    }
    assert.equal(text, expected.completion);
  },

  async "a chat, plain and streamed, with usage"() {
    const plain = await client.chat.completions.create(asked);
    assert.equal(plain.choices[0].message.content, expected.chat);
    const stream = await client.chat.completions.create({
      ...asked,
      stream: true,
      stream_options: { include_usage: true },
    });
    let text = "";
    let usage;
    for await (const chunk of stream) {
      text += chunk.choices[0]?.delta.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, expected.chat);
    assert.equal(usage.completion_tokens, plain.usage.completion_tokens);
  },

  async "a streaming runner collects the message"() {
    const runner = client.chat.completions.stream(asked);
    const final = await runner.finalChatCompletion();
    assert.equal(final.choices[0].message.content, expected.chat);
  },

  async "responses, plain, streamed and gone on from"() {
    const fields = { model, input: "Hello", max_output_tokens: 16, temperature: 0 };
    const plain = await client.responses.create(fields);
    assert.equal(plain.output_text, expected.chat);
    let text = "";
    let ended;
    for await (const event of await client.responses.create({ ...fields, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
      if (event.type === "response.incomplete" || event.type === "response.completed") ended = event.response;
    }
    assert.equal(text, expected.chat);
    assert.equal(ended.output[0].content[0].text, expected.chat);
    const next = await client.responses.create({ ...fields, input: "And?", previous_response_id: plain.id });
    assert.equal(next.previous_response_id, plain.id);
    assert.equal((await client.responses.retrieve(plain.id)).id, plain.id);
    const items = [];
    for await (const item of await client.responses.inputItems.list(next.id, { order: "asc" })) items.push(item.type);
    assert.deepEqual(items, ["message", "message", "message"]);
    await client.responses.delete(plain.id);
    await assert.rejects(client.responses.retrieve(plain.id), OpenAI.NotFoundError);
  },

  async "a tool that must be called, plain and streamed"() {
    const fields = { ...asked, max_tokens: 1200, tools, tool_choice: "required", parallel_tool_calls: false };
    const plain = (await client.chat.completions.create(fields)).choices[0];
    assert.equal(plain.finish_reason, "tool_calls");
    const [call] = plain.message.tool_calls;
    assert.equal(call.function.name, "paint");
    const painted = JSON.parse(call.function.arguments);
    assert.deepEqual(Object.keys(painted).sort(), ["colour", "sure"]);
    const streamed = (await client.chat.completions.stream(fields).finalChatCompletion()).choices[0];
    assert.equal(streamed.message.tool_calls[0].function.arguments, call.function.arguments);
    const answered = [...messages, plain.message, { role: "tool", tool_call_id: call.id, content: "done" }];
    const last = await client.chat.completions.create({ ...asked, messages: answered, tools });
    assert(last.choices[0].message.content);
  },

  async "an answer that follows a schema"() {
    const schema = { name: "verdict", strict: true, schema: parameters };
    const fields = { ...asked, max_tokens: 1200, response_format: { type: "json_schema", json_schema: schema } };
    const chat = await client.chat.completions.parse(fields);
    assert.equal(typeof chat.choices[0].message.parsed.sure, "boolean");
    const response = await client.responses.parse({
      model,
      input: "Hello",
      max_output_tokens: 1200,
      temperature: 0,
      text: { format: { type: "json_schema", ...schema } },
    });
    assert.deepEqual(response.output_parsed, chat.choices[0].message.parsed);
  },

  async "embeddings, as floats and in base64"() {
    const made = await client.embeddings.create({ model, input: ["Hello", "Hello world"] });
    const floats = await client.embeddings.create({ model, input: "Hello", encoding_format: "float" });
    assert.deepEqual([...made.data[0].embedding], floats.data[0].embedding);
    assert.notDeepEqual(made.data[1].embedding, made.data[0].embedding);
  },

  async "errors are of the right classes"() {
    await assert.rejects(client.completions.create({ model: "other", prompt: "hi" }), (error) => {
      assert(error instanceof OpenAI.NotFoundError);
      assert.equal(error.code, "model_not_found");
      assert.equal(error.param, "model");
      return true;
    });
    await assert.rejects(client.chat.completions.create({ ...asked, max_tokens: 5000, stream: true }), (error) => {
      assert(error instanceof OpenAI.BadRequestError);
      assert.equal(error.code, "context_length_exceeded");
      return true;
    });
    await assert.rejects(client.chat.completions.create({ ...asked, no_such_field: 1 }), (error) => {
      assert(error instanceof OpenAI.BadRequestError);
      assert.equal(error.param, "no_such_field");
      return true;
    });
    const stranger = new OpenAI({ ...options, apiKey: "wrong" });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
    const nowhere = new OpenAI({ ...options, baseURL: "http://127.0.0.1:1/v1" });
    await assert.rejects(nowhere.models.list(), OpenAI.APIConnectionError);
  },

  async "a stream can be aborted"() {
    const stream = await client.chat.completions.create({ ...asked, max_tokens: 900, ignore_eos: true, stream: true });
    let chunks = 0;
    for await (const _ of stream) {
      chunks += 1;
      if (chunks === 3) stream.controller.abort();
      assert(chunks < 100, "it goes on after it was aborted");
    }
    assert(chunks >= 3);
  },
};

for (const [name, run] of Object.entries(cases)) {
  await run();
  console.log(`ok ${name}`);
}
