// The openai package for JavaScript.
import OpenAI from "openai";
import { EMBED_MODEL, MODEL, PERSON, PERSON_TEXT, TOOLS, V1, WEATHER_QUESTION, expect, run } from "./check.mjs";

const client = new OpenAI({ baseURL: V1, apiKey: "none", maxRetries: 0, timeout: 300_000 });
const said = (content) => [{ role: "user", content }];

await run({
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    expect(ids.includes(MODEL), ids);
    return ids;
  },
  async stream() {
    const stream = client.chat.completions.stream({
      model: MODEL,
      messages: said("Count from one to twenty in words."),
      max_completion_tokens: 12,
      stream_options: { include_usage: true },
    });
    let pieces = 0;
    stream.on("content", () => (pieces += 1));
    const reply = await stream.finalChatCompletion();
    expect(pieces > 1 && reply.usage.completion_tokens <= 12, reply);
    return `${pieces} pieces: ${reply.choices[0].message.content}`;
  },
  async cancel() {
    const stream = await client.chat.completions.create({
      model: MODEL,
      messages: said("Count from one to a thousand."),
      max_tokens: 2000,
      stream: true,
    });
    let pieces = 0;
    for await (const _ of stream) if ((pieces += 1) === 3) break;
    const reply = await client.chat.completions.create({ model: MODEL, messages: said("Hi."), max_tokens: 2 });
    expect(reply.choices[0].message.content, reply);
    return "a short request right after is served";
  },
  async tool_loop() {
    const messages = said(WEATHER_QUESTION);
    const request = { model: MODEL, tools: TOOLS, temperature: 0, max_tokens: 40 };
    const asked = (await client.chat.completions.create({ ...request, messages })).choices[0];
    expect(asked.finish_reason === "tool_calls", asked);
    const call = asked.message.tool_calls[0];
    expect(JSON.parse(call.function.arguments).city === "Paris", call);
    messages.push(asked.message, { role: "tool", tool_call_id: call.id, content: "18 degrees" });
    messages.push(...said("Now answer my question in one sentence."));
    const text = (await client.chat.completions.create({ ...request, messages })).choices[0].message.content;
    expect(text.includes("18"), text);
    return text;
  },
  async forced_tool() {
    const stream = client.chat.completions.stream({
      model: MODEL, messages: said("Hello."), tools: TOOLS, tool_choice: "required", max_tokens: 60,
    });
    const call = (await stream.finalChatCompletion()).choices[0].message.tool_calls[0].function;
    expect("city" in JSON.parse(call.arguments), call);
    return `${call.name}(${call.arguments})`;
  },
  async json_schema() {
    const reply = await client.chat.completions.parse({
      model: MODEL,
      messages: said(PERSON_TEXT),
      response_format: { type: "json_schema", json_schema: { name: "person", strict: true, schema: PERSON } },
      temperature: 0,
      max_tokens: 60,
    });
    const person = JSON.parse(reply.choices[0].message.content);
    expect(person.name === "John" && person.age === 30, person);
    return reply.choices[0].message.content;
  },
  async responses() {
    const kinds = [];
    for await (const event of await client.responses.create({
      model: MODEL, input: "Say hi.", max_output_tokens: 16, stream: true,
    })) kinds.push(event.type);
    expect(kinds[0] === "response.created" && kinds.includes("response.output_text.delta"), kinds);
    return kinds.at(-1);
  },
  async embeddings() {
    const reply = await client.embeddings.create({ model: EMBED_MODEL, input: ["a cat", "a tax form"] });
    expect(reply.data.length === 2 && reply.data[0].embedding.length === 384, reply.data.length);
    return "384 dimensions";
  },
  async errors() {
    const error = await client.chat.completions.create({ model: "nobody", messages: said("hi") }).catch((one) => one);
    expect(error instanceof OpenAI.NotFoundError && error.code === "model_not_found", String(error));
    return error.message;
  },
});
