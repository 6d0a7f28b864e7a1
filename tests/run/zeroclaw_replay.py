#!/usr/bin/env python3
"""A replay of ZeroClaw 0.8.4's one-shot mode, standing in for a program that no registry has. It is not ZeroClaw.

It reads the same configuration file and sends what ZeroClaw's sources say it sends: calls that are not streamed, tools
natively or as text, or text alone over Responses; reasoning sent back; ``name`` on tool messages; a time stamp before
the user's text; two retries, with a wait that is read out of the error's text. Python's standard library only.
"""

import http.client
import json
import os
import re
import subprocess
import sys
import time
import tomllib
import urllib.parse
from typing import Any

Messages = list[dict[str, Any]]
Said = tuple[str, list[tuple[str, str, str]], dict[str, Any]]
"""Text, calls (id, name, arguments), and the message as it will be sent back."""
RETRIES, BACKOFF_S, WAIT_MAX_S = 2, 0.5, 30.0
SHELL = {
    "name": "shell",
    "description": "Execute a shell command in the workspace directory",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The shell command to execute"}},
        "required": ["command"],
    },
}
CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
WAIT = re.compile(r"retry[-_]after[: ]\s*([\d.]+)", re.IGNORECASE)


class Failed(Exception):
    """What the provider said, as text: all that ZeroClaw's retries go by."""


class Provider:
    def __init__(self, entry: dict[str, Any]) -> None:
        self.entry = entry
        self.waits: list[float] = []

    def post(self, path: str, body: dict[str, Any]) -> Any:
        for attempt in range(RETRIES + 1):
            try:
                return self._once(path, body)
            except Failed as error:
                if attempt == RETRIES or permanent(str(error)):
                    raise
                told = WAIT.search(str(error))
                usual = BACKOFF_S * 2**attempt
                self.waits.append(max(usual, min(float(told[1]), WAIT_MAX_S)) if told else usual)
                time.sleep(self.waits[-1])
        raise AssertionError

    def _once(self, path: str, body: dict[str, Any]) -> Any:
        url = urllib.parse.urlsplit(self.entry["uri"])
        connection = http.client.HTTPConnection(url.hostname, url.port, timeout=self.entry.get("timeout_secs", 120))
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.entry['api_key']}"}
        connection.request("POST", url.path + path, json.dumps(body), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status != 200:
            raise Failed(f"custom API error ({answer.status}): {text}")
        return json.loads(text)


def permanent(error: str) -> bool:
    """The first number from 400 to 499 in the text decides."""
    codes = [int(word) for word in re.findall(r"\d+", error) if word.isdigit() and 400 <= int(word) < 500]
    return bool(codes) and codes[0] not in (408, 429)


def chat(provider: Provider, messages: Messages) -> Said:
    """One turn over chat completions."""
    native = provider.entry.get("native_tools", False)
    body = {"model": provider.entry["model"], "messages": messages, "stream": False}
    if "max_tokens" in provider.entry:
        body["max_tokens"] = provider.entry["max_tokens"]
    if native:
        body |= {"tools": [{"type": "function", "function": SHELL}], "tool_choice": "auto"}
    said = provider.post("/chat/completions", body)["choices"][0]["message"]
    text, reasoning = said.get("content") or "", said.get("reasoning_content") or said.get("reasoning")
    if not native or not said.get("tool_calls"):
        return text, [], {"role": "assistant", "content": text}
    calls = []
    for call in said["tool_calls"]:
        arguments = call["function"]["arguments"]
        try:
            json.loads(arguments)
        except ValueError:
            arguments = "{}"  # what cannot be read is sent back as nothing
        calls.append((call["id"], call["function"]["name"], arguments))
    echo: dict[str, Any] = {"role": "assistant"}
    if text:
        echo["content"] = text
    echo["tool_calls"] = [
        {"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}
        for key, name, arguments in calls
    ]
    if reasoning:
        echo["reasoning_content"] = reasoning
    return text, calls, echo


def responses(provider: Provider, messages: Messages) -> Said:
    """One turn over Responses: text only, the system prompt as instructions."""
    system = "\n\n".join(m["content"] for m in messages if m["role"] == "system")
    items: Messages = []
    for message in (m for m in messages if m["role"] != "system"):
        if message["role"] == "user":
            items.append({"role": "user", "content": message["content"]})
        else:
            part = {"type": "output_text", "text": message["content"]}
            items.append({"role": "assistant", "type": "message", "content": [part]})
    body = {"model": provider.entry["model"], "input": items, "instructions": system, "stream": False}
    made = provider.post("/responses", body)
    parts = [part for item in made["output"] if item["type"] == "message" for part in item["content"]]
    text = "".join(part["text"] for part in parts if part["type"] == "output_text")
    return text, [], {"role": "assistant", "content": text}


def work(provider: Provider, prompt: str, workspace: str) -> str:
    textual = not provider.entry.get("native_tools", False) or provider.entry.get("wire_api") == "responses"
    system = "You are ZeroClaw, a fast, efficient AI assistant."
    if textual:
        system += "\n\n## Tool Use Protocol\n\nWrap a JSON object in <tool_call></tool_call> tags.\n\n" + json.dumps(
            SHELL
        )
    stamped = time.strftime("[%Y-%m-%d %H:%M:%S %Z] ") + prompt
    messages: Messages = [{"role": "system", "content": system}, {"role": "user", "content": stamped}]
    turn = responses if provider.entry.get("wire_api") == "responses" else chat
    while True:
        text, calls, echo = turn(provider, messages)
        messages.append(echo)
        for key, name, arguments in calls:
            result = shell(json.loads(arguments), workspace)
            messages.append({"role": "tool", "tool_call_id": key, "name": name, "content": result})
        written = [json.loads(found) for found in CALL.findall(text)] if textual else []
        results = [shell(each["arguments"], workspace) for each in written]
        if results:
            told = "\n".join(f'<tool_result name="shell" status="ok">\n{each}\n</tool_result>' for each in results)
            messages.append({"role": "user", "content": f"[Tool results]\n{told}"})
        if not calls and not results:
            return text


def shell(arguments: dict[str, Any], workspace: str) -> str:
    command = arguments.get("command")
    if command is None:
        return "Error: missing 'command'"
    done = subprocess.run(["/bin/sh", "-c", command], cwd=workspace, capture_output=True, text=True)
    return done.stdout + done.stderr


def main() -> None:
    if sys.argv[1:] == ["--version"]:
        print("zeroclaw 0.8.4 (a replay)")
        return
    assert sys.argv[1:4] == ["agent", "-a", "main"], sys.argv
    prompt = sys.argv[4].removeprefix("--message=")
    with open(os.path.join(os.environ["ZEROCLAW_CONFIG_DIR"], "config.toml"), "rb") as file:
        config = tomllib.load(file)
    agent = config["agents"]["main"]
    kind, _, alias = agent["model_provider"].partition(".")
    provider = Provider(config["providers"]["models"][kind][alias])
    try:
        print(work(provider, prompt, agent["workspace"]["path"]))
    except Failed as error:
        sys.exit(str(error))
    finally:
        print(json.dumps({"waits": provider.waits}), file=sys.stderr)


if __name__ == "__main__":
    main()
