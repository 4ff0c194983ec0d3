// LangChain for JavaScript: ChatOpenAI and ChatOllama.
import { ChatOllama } from "@langchain/ollama";
import { ChatOpenAI } from "@langchain/openai";
import { BASE, MODEL, TOOLS, V1, WEATHER_QUESTION, expect, run } from "./check.mjs";

const openai = (maxTokens) =>
  new ChatOpenAI({ model: MODEL, apiKey: "none", temperature: 0, maxTokens, configuration: { baseURL: V1 } });
const ollama = (numPredict) => new ChatOllama({ model: MODEL, baseUrl: BASE, temperature: 0, numPredict });

async function chatWith(model) {
  const reply = await model.invoke("Say hi.");
  expect(reply.content && reply.usage_metadata.output_tokens <= 8, reply);
  let pieces = 0;
  for await (const chunk of await model.stream("Count from one to twenty in words.")) pieces += chunk.content ? 1 : 0;
  expect(pieces > 1, pieces);
  return `${pieces} pieces`;
}

async function callWith(model) {
  const reply = await model.bindTools(TOOLS).invoke(WEATHER_QUESTION);
  const call = reply.tool_calls[0];
  expect(call?.name === "get_weather" && call.args.city === "Paris", reply);
  return JSON.stringify(call.args);
}

await run({
  openai_chat: () => chatWith(openai(8)),
  ollama_chat: () => chatWith(ollama(8)),
  openai_tools: () => callWith(openai(40)),
  ollama_tools: () => callWith(ollama(40)),
});
