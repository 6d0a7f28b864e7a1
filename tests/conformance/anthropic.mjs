// The official Anthropic SDK for JavaScript through the proxy; the test beside it says what must come out.
const { default: Anthropic } = await import(process.env.SDK);

const client = new Anthropic({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const tools = [
  { name: "run", description: "Runs a command", input_schema: { type: "object", properties: { cmd: { type: "string" } } } },
];
const ask = { model: "policy", max_tokens: 1000, tools };
const hi = { role: "user", content: "hi" };

async function streamed(messages) {
  const kinds = [];
  const stream = client.messages.stream({ ...ask, messages });
  stream.on("streamEvent", (event) => kinds.push(event.type));
  const message = await stream.finalMessage();
  return { kinds, message };
}

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? null, type: error.type ?? null, text: error.message };
  }
  return null;
}

const first = await streamed([hi]);
const results = first.message.content
  .filter((block) => block.type === "tool_use")
  .reverse()
  .map((block) => ({ type: "tool_result", tool_use_id: block.id, content: `result of ${block.input.cmd}` }));
const history = [hi, { role: "assistant", content: first.message.content }, { role: "user", content: results }];
const second = await streamed(history);
const whole = await client.messages.create({ ...ask, messages: [hi] });
const counted = await client.messages.countTokens({ model: "policy", messages: [hi], tools });
const beta = await client.beta.messages.create({ ...ask, messages: [hi], betas: ["made-up-2031-01-01"] });
const failures = [];
for (let n = 0; n < Number(process.env.FAILURES); n++) {
  failures.push(await failure(() => client.messages.create({ ...ask, messages: [hi] })));
}
const broken = await failure(() => streamed([hi]));
const stranger = client.withOptions({ apiKey: "fs_wrong" });
const denied = await failure(() => stranger.messages.create({ ...ask, messages: [hi] }));

console.log(JSON.stringify({ first, second, whole, counted, beta, failures, broken, denied }));
