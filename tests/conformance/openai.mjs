// The official OpenAI SDK for JavaScript through the proxy; the test beside it says what must come out.
const { default: OpenAI } = await import(process.env.SDK);

const client = new OpenAI({ baseURL: process.env.BASE_URL, apiKey: process.env.API_KEY, maxRetries: 0 });
const parameters = { type: "object", properties: { cmd: { type: "string" } }, required: ["cmd"], additionalProperties: false };
const chatTools = [{ type: "function", function: { name: "run", parameters } }];
const tools = [
  { type: "function", name: "run", parameters, strict: false },
  { type: "custom", name: "patch", description: "Takes a patch as it is" },
];
const hi = { role: "user", content: "hi" };

async function chat(messages) {
  const deltas = [];
  const stream = client.chat.completions.stream({
    model: "policy", messages, tools: chatTools, stream_options: { include_usage: true },
  });
  stream.on("content", (delta) => deltas.push(delta));
  const completion = await stream.finalChatCompletion();
  return { deltas, message: completion.choices[0].message, finish: completion.choices[0].finish_reason, usage: completion.usage };
}

async function respond(input) {
  const kinds = [];
  const stream = client.responses.stream({ model: "policy", input, tools, include: ["reasoning.encrypted_content"] });
  for await (const event of stream) kinds.push(event.type);
  const response = await stream.finalResponse();
  return { kinds, output: response.output, text: response.output_text, status: response.status, error: response.error, usage: response.usage };
}

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return { name: error.constructor.name, status: error.status ?? null, code: error.code ?? null, text: error.message };
  }
  return null;
}

// Two turns of chat, the results in another order than the calls.
const first = await chat([hi]);
const results = first.message.tool_calls
  .map((call) => ({ role: "tool", tool_call_id: call.id, content: `result of ${JSON.parse(call.function.arguments).cmd}` }))
  .reverse();
const second = await chat([hi, first.message, ...results]);

// The SDK's own loop of tools.
const ran = [];
const runner = client.chat.completions.runTools({
  model: "policy",
  messages: [hi],
  tools: [{ type: "function", function: { name: "run", parameters, parse: JSON.parse, function: (args) => { ran.push(args.cmd); return "ran"; } } }],
});
const loop = await runner.finalContent();

// Two turns of responses: everything comes back as it was given.
const one = await respond([{ role: "user", content: "hi" }]);
const outputs = one.output
  .filter((item) => item.type.endsWith("_call"))
  .map((item) => ({ type: `${item.type}_output`, call_id: item.call_id, output: `result of ${item.name}` }));
const two = await respond([{ role: "user", content: "hi" }, ...one.output, ...outputs]);

const models = [];
for await (const model of await client.models.list()) models.push(model.id);
const completion = await client.completions.create({ model: "policy", prompt: "Once upon", max_tokens: 20 });
const failures = [];
for (let n = 0; n < Number(process.env.FAILURES); n++) {
  failures.push(await failure(() => client.chat.completions.create({ model: "policy", messages: [hi] })));
}
const broken = await failure(() => chat([hi]));
const failed = await respond("hi");
const denied = await failure(() => client.withOptions({ apiKey: "fs_wrong" }).responses.create({ model: "policy", input: "hi" }));
const stateful = await failure(() => client.responses.create({ model: "policy", input: "hi", previous_response_id: "resp_1" }));

console.log(JSON.stringify({ first, second, ran, loop, one, two, models, completion, failures, broken, failed, denied, stateful }));
