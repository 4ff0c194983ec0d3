// Vercel's AI SDK, with its provider for OpenAI's API and a community one for Ollama's.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, stepCountIs, streamText, tool } from "ai";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";
import { BASE, EMBED_MODEL, MODEL, PERSON_TEXT, V1, WEATHER_QUESTION, expect, run } from "./check.mjs";

const provider = createOpenAICompatible({
  name: "emberd", baseURL: V1, includeUsage: true, supportsStructuredOutputs: true,
});
const openai = provider(MODEL);
const ollama = createOllama({ baseURL: `${BASE}/api` })(MODEL);
const person = z.object({ name: z.string().max(12), age: z.number().int() });
const getWeather = tool({
  description: "Get the weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => `18 degrees in ${city}`,
});

async function streamWith(model) {
  const result = streamText({ model, prompt: "Count from one to twenty in words.", maxOutputTokens: 12, maxRetries: 0 });
  let pieces = 0;
  for await (const _ of result.textStream) pieces += 1;
  const usage = await result.usage;
  expect(pieces > 1 && usage.outputTokens > 0, { pieces, usage });
  return `${pieces} pieces`;
}

async function loopWith(model) {
  const result = await generateText({
    model, prompt: WEATHER_QUESTION, tools: { get_weather: getWeather }, temperature: 0, maxOutputTokens: 40,
    maxRetries: 0, stopWhen: stepCountIs(2),
    providerOptions: { ollama: { options: { num_predict: 40 } } }, // its provider sends the limit where Ollama has none
  });
  const call = result.steps[0].toolCalls[0];
  expect(call?.toolName === "get_weather" && call.input.city === "Paris", result.steps[0].content);
  expect(result.steps.length === 2, result.steps.length);
  return `the result went back: ${result.text}`;
}

await run({
  openai_stream: () => streamWith(openai),
  ollama_stream: () => streamWith(ollama),
  openai_tool_loop: () => loopWith(openai),
  ollama_tool_loop: () => loopWith(ollama),
  async forced_tool() {
    const result = await generateText({
      model: openai, prompt: "Hello.", tools: { get_weather: getWeather }, toolChoice: "required",
      maxOutputTokens: 60, maxRetries: 0,
    });
    expect(result.steps[0].toolCalls.length >= 1, result.steps[0].content);
    return JSON.stringify(result.steps[0].toolCalls[0].input);
  },
  async structured() {
    const { output } = await generateText({
      model: openai, prompt: PERSON_TEXT, output: Output.object({ schema: person }), temperature: 0,
      maxOutputTokens: 60, maxRetries: 0,
    });
    expect(output.name === "John" && output.age === 30, output);
    return JSON.stringify(output);
  },
  async embed() {
    const { embeddings } = await embedMany({
      model: provider.textEmbeddingModel(EMBED_MODEL), values: ["a cat", "a tax form"],
    });
    expect(embeddings.length === 2 && embeddings[0].length === 384, embeddings.length);
    return "384 dimensions";
  },
});
