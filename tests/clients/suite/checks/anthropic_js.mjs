// The Anthropic package for JavaScript.
import Anthropic from "@anthropic-ai/sdk";
import { BASE, MODEL, TOOLS as FUNCTIONS, WEATHER_QUESTION, expect, run } from "./check.mjs";

const client = new Anthropic({ baseURL: BASE, apiKey: "none", maxRetries: 0, timeout: 300_000 });
const said = (content) => [{ role: "user", content }];
const tools = FUNCTIONS.map(({ function: { parameters, ...rest } }) => ({ ...rest, input_schema: parameters }));
const textOf = (message) => message.content.map((block) => block.text ?? "").join("");

await run({
  async models() {
    const ids = [];
    for await (const model of client.models.list()) ids.push(model.id);
    expect(ids.includes(MODEL), ids);
    return ids;
  },
  async stream() {
    let pieces = 0;
    const stream = client.messages
      .stream({ model: MODEL, max_tokens: 12, system: "Be brief.", messages: said("Count from one to twenty in words.") })
      .on("text", () => (pieces += 1));
    const message = await stream.finalMessage();
    expect(pieces > 1 && message.usage.output_tokens <= 12, message);
    return `${pieces} pieces: ${textOf(message)}`;
  },
  async tool_loop() {
    const messages = said(WEATHER_QUESTION);
    const request = { model: MODEL, max_tokens: 40, tools, temperature: 0 };
    const asked = await client.messages.stream({ ...request, messages }).finalMessage();
    expect(asked.stop_reason === "tool_use", asked);
    const call = asked.content.find((block) => block.type === "tool_use");
    expect(call.name === "get_weather" && call.input.city === "Paris", call);
    const result = { type: "tool_result", tool_use_id: call.id, content: "18 degrees" };
    const ask = { type: "text", text: "Now answer my question in one sentence." };
    messages.push({ role: "assistant", content: asked.content }, { role: "user", content: [result, ask] });
    const text = textOf(await client.messages.create({ ...request, messages }));
    expect(text.includes("18"), text);
    return text;
  },
  async forced_tool() {
    const tool_choice = { type: "tool", name: "get_time" };
    const request = { model: MODEL, max_tokens: 60, tools, tool_choice, messages: said("Hello.") };
    const message = await client.messages.create(request);
    const call = message.content.find((block) => block.type === "tool_use");
    expect(call?.name === "get_time" && "city" in call.input, message);
    return JSON.stringify(call.input);
  },
  async count_tokens() {
    const counted = await client.messages.countTokens({ model: MODEL, messages: said("Say hi.") });
    expect(counted.input_tokens > 3, counted);
    return counted.input_tokens;
  },
  async errors() {
    const error = await client.messages
      .create({ model: "nobody", max_tokens: 4, messages: said("hi") })
      .catch((one) => one);
    expect(error instanceof Anthropic.NotFoundError, String(error));
    return error.message;
  },
});
