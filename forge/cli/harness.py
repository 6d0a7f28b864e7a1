"""``forge harness``: the agent programs Forge knows, where they are installed, and how each is started."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge.storage.errors import BadInput, Unavailable, Untrainable

if TYPE_CHECKING:
    from forge.adapters.harnesses.base import Launch

COMMAND = Annotated[str | None, typer.Option(help="The command line, for the harness `command`.")]
NAME = Annotated[str, typer.Argument(help="One of the names that `forge harness list` shows.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="harness",
        help="Install harnesses, check them, and see how they are started.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command(name="list", epilog="Example: forge harness list")(show)
    group.command(name="install", epilog="Example: forge harness install pi codex")(install)
    group.command(name="check", epilog=CHECK_EXAMPLE)(check)
    group.command(name="launch", epilog=LAUNCH_EXAMPLE)(launch)
    app.add_typer(group)


def show(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the harnesses: version, wire format, installed or not, when each was last checked. --json: also where."""
    from forge.adapters.harnesses import HARNESSES
    from forge.adapters.harnesses.packages import cache_folder
    from forge.harness_listing import Entry, entries, table
    from forge.terminal import console

    found: list[Entry] = entries(HARNESSES.values())
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in found], indent=2))
    else:
        console().print(table(found))
        typer.echo(f"\nThey lie in {cache_folder()}; forge harness install NAME fetches one, and so does forge run.")
        typer.echo("Any other program: forge run --harness command --command 'PROGRAM {prompt}'.")


def install(
    names: Annotated[list[str], typer.Argument(help="Names that `forge harness list` shows, or `all`.")],
) -> None:
    """Fetch harnesses at their pinned versions into the cache ($FORGE_CACHE, by default ~/.cache/forge).

    What is there already is left alone. One that cannot be had does not stop the others; the exit code is then 4.
    """
    from forge.adapters.harnesses import HARNESSES, find
    from forge.adapters.harnesses.packages import cache_folder
    from forge.progress import working

    chosen = sorted(HARNESSES) if names == ["all"] else list(dict.fromkeys(names))
    adapters = [find(name) for name in chosen]
    failed: list[Unavailable] = []
    for number, adapter in enumerate(adapters, 1):
        try:
            with working(f"[{number}/{len(adapters)}] {adapter.name} {adapter.version}") as say:
                adapter.install(cache_folder(), say)
            typer.echo(f"{adapter.name} {adapter.version} is installed")
        except Unavailable as error:
            typer.echo(f"{adapter.name} {adapter.version} is not: {error.message}")
            failed.append(error)
    if failed:
        raise failed[0]


CHECK_EXAMPLE = "Example: forge harness check codex"


def check(
    name: NAME,
    command: COMMAND = None,
    timeout: Annotated[float, typer.Option(help="Seconds after which the harness is ended.")] = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="The facts as JSON.")] = False,
) -> None:
    """Run one scripted two-turn tool task in a harness, through a real proxy, and print the facts found.

    The model is a script: it asks for a shell command that writes a file, then says that it is done. The facts: wire
    format, calls served and recorded, ids, what moved in the prefix, side calls, the harness's own transcript, hosts
    asked for by name. `forge harness list` shows when it was last done. Exit code 0: every call that was served is a
    row with the same ids, and the task was done; 3: not so.
    """
    from forge.adapters.harnesses import find
    from forge.harness_check import check as checks
    from forge.harness_check.facts import keep, to_json
    from forge.harness_check.table import failure, print_facts
    from forge.progress import working
    from forge.signals import until_signalled
    from forge.terminal import console

    adapter = find(name, command)
    with working(f"checking {adapter.name}") as say:
        facts, kept = asyncio.run(until_signalled(checks.check(adapter, say, seconds=timeout)))
    if command is None:
        keep(facts)
    if as_json:
        typer.echo(to_json(facts))
    else:
        print_facts(facts, console())
    if not facts.passed:
        raise Untrainable(failure(facts), f"look at its output, transcript and the proxy's log in {kept}")


LAUNCH_EXAMPLE = (
    "Example: forge harness launch pi --base-url http://127.0.0.1:8100/v1 --api-key none --prompt 'Say hi' --json"
)


def launch(
    name: NAME,
    base_url: Annotated[str, typer.Option(help="What the harness calls; ends in /v1.")],
    api_key: Annotated[str, typer.Option(help="The session's key.")],
    prompt: Annotated[str, typer.Option(help="What the agent is asked.")],
    command: COMMAND = None,
    model: Annotated[
        str, typer.Option(help="Model name it sends; keep it out of the harness's own catalogue.")
    ] = "policy",
    workspace: Annotated[str, typer.Option(help="Folder it works in, as it will see it.")] = "/workspace",
    home: Annotated[str, typer.Option(help="Its own HOME, as it will see it.")] = "/home/agent",
    installs: Annotated[str | None, typer.Option(help="Folder of the installed packages. [the cache]")] = None,
    max_model_len: Annotated[int, typer.Option(help="Tokens of prompt and output that the policy takes.")] = 32768,
    max_tokens: Annotated[int, typer.Option(help="Output tokens it asks for, where it must name a number.")] = 4096,
    timeout: Annotated[float, typer.Option(help="Seconds after which its process tree shall be ended.")] = 600.0,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, not as a shell script.")] = False,
) -> None:
    """Print how to start a harness somewhere else: command, environment, files. Nothing is started here.

    Give it a HOME and a workspace of its own, no standard input, and end its whole process tree at the time limit.
    """
    from forge.adapters.harnesses import find
    from forge.adapters.harnesses.base import LaunchRequest
    from forge.adapters.harnesses.packages import cache_folder

    adapter = find(name, command)
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?/v1", base_url):
        raise BadInput(f"{base_url!r} is no base URL of a proxy", "give one like http://127.0.0.1:8100/v1")
    if not prompt.strip():
        raise BadInput("the prompt is empty", "say what the agent shall do: --prompt 'Create hello.txt containing hi'")
    made = adapter.launch(
        LaunchRequest(
            base_url=base_url,
            api_key=api_key,
            model=model,
            prompt=prompt,
            workspace=workspace,
            home=home,
            installs=installs or str(cache_folder()),
            context_tokens=max_model_len,
            output_tokens=max_tokens,
            seconds=timeout,
        )
    )
    files = {str(Path(home) / path): text for path, text in made.files.items()}
    if as_json:
        told: dict[str, object] = {
            "argv": made.argv,
            "env": {**made.env, "HOME": home},
            "path": made.path,
            "files": files,
        }
        told |= {"cwd": made.cwd, "timeout": made.limits.seconds, "packages": [p.folder for p in adapter.packages]}
        typer.echo(json.dumps(told, indent=2))
    else:
        typer.echo("\n".join(_script(made, home, files)))


def _script(launch: Launch, home: str, files: dict[str, str]) -> Iterator[str]:
    yield "set -eu"
    for path, text in files.items():
        yield f"mkdir -p {shlex.quote(str(Path(path).parent))}"
        yield f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"
    yield f"cd {shlex.quote(launch.cwd)}"
    path = ":".join((*launch.path, ""))
    settings = [f"{name}={shlex.quote(value)}" for name, value in {**launch.env, "HOME": home}.items()]
    yield " ".join(["exec env", f'PATH={shlex.quote(path)}"$PATH"', *settings, shlex.join(launch.argv), "< /dev/null"])
