// What the JavaScript checks share: where the daemon is, and steps that say what they saw.
export const BASE = process.env.BASE_URL;
export const V1 = `${BASE}/v1`;
export const { MODEL, EMBED_MODEL, AGENT_MODEL } = process.env;

const city = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
export const WEATHER = { name: "get_weather", description: "Get the weather of a city.", parameters: city };
export const TIME = { name: "get_time", description: "Get the local time of a city.", parameters: city };
export const TOOLS = [WEATHER, TIME].map((one) => ({ type: "function", function: one }));
export const WEATHER_QUESTION = "What is the weather in Paris?";
export const PERSON = {
  type: "object",
  properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer" } },
  required: ["name", "age"],
  additionalProperties: false,
};
export const PERSON_TEXT = "John is 30 years old. Extract the name and the age as JSON.";

export function expect(condition, seen) {
  if (!condition) throw new Error(`not as expected: ${typeof seen === "string" ? seen : JSON.stringify(seen)}`);
}

// Runs all steps in order; a step fails by throwing.
export async function run(steps) {
  let failed = 0;
  const flat = (text) => String(text ?? "").split(/\s+/).join(" ").trim();
  for (const [name, step] of Object.entries(steps)) {
    try {
      console.log(`ok ${name}: ${flat(await step()).slice(0, 200)}`);
    } catch (error) {
      console.error(error);
      failed += 1;
      console.log(`FAIL ${name}: ${flat(`${error?.name}: ${error?.message}`).slice(0, 300)}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
