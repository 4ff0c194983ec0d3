// The ollama package for JavaScript.
import { Ollama } from "ollama";
import { BASE, EMBED_MODEL, MODEL, PERSON, PERSON_TEXT, TOOLS, WEATHER_QUESTION, expect, run } from "./check.mjs";

const client = new Ollama({ host: BASE });
const said = (content) => [{ role: "user", content }];
const options = { temperature: 0, num_predict: 40 };

await run({
  async listing() {
    const names = (await client.list()).models.map((one) => one.name);
    expect(names.some((name) => name.split(":")[0] === MODEL), names);
    const shown = await client.show({ model: MODEL });
    expect(shown.capabilities.includes("tools"), shown.capabilities);
    return names;
  },
  async chat_stream() {
    let pieces = 0, last;
    const request = { model: MODEL, messages: said("Count from one to twenty in words."), stream: true };
    for await (const part of await client.chat({ ...request, options: { ...options, num_predict: 6 } })) {
      pieces += part.message.content ? 1 : 0;
      last = part;
    }
    expect(pieces > 1 && last.done && last.done_reason === "length" && last.eval_count === 6, last);
    return `${pieces} pieces`;
  },
  async abort() {
    const request = { model: MODEL, prompt: "Count from one to a thousand.", stream: true };
    const stream = await client.generate({ ...request, options: { num_predict: 2000 } });
    let pieces = 0, name = "";
    try {
      for await (const _ of stream) if ((pieces += 1) === 3) stream.abort();
    } catch (error) {
      name = error.name;
    }
    expect(name === "AbortError" && pieces === 3, `${pieces} ${name}`);
    return "after three pieces";
  },
  async tool_loop() {
    const messages = said(WEATHER_QUESTION);
    const { message } = await client.chat({ model: MODEL, messages, tools: TOOLS, options });
    const call = message.tool_calls[0].function;
    expect(call.name === "get_weather" && call.arguments.city === "Paris", call);
    messages.push(message, { role: "tool", tool_name: call.name, content: "18 degrees" });
    messages.push(...said("Now answer my question in one sentence."));
    const text = (await client.chat({ model: MODEL, messages, tools: TOOLS, options })).message.content;
    expect(text.includes("18"), text);
    return text;
  },
  async schema_format() {
    const reply = await client.chat({ model: MODEL, messages: said(PERSON_TEXT), format: PERSON, options });
    const person = JSON.parse(reply.message.content);
    expect(person.name === "John" && person.age === 30, person);
    return reply.message.content;
  },
  async embed() {
    const reply = await client.embed({ model: EMBED_MODEL, input: ["a cat", "a tax form"] });
    expect(reply.embeddings.length === 2 && reply.embeddings[0].length === 384, reply.embeddings.length);
    return "384 dimensions";
  },
  async errors() {
    const error = await client.chat({ model: "nobody", messages: said("hi") }).catch((one) => one);
    expect(error.status_code === 404 && error.message.includes("not found"), String(error));
    return error.message;
  },
});
