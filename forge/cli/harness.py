"""``forge harness``: the agent programs Forge knows, where they are installed, and how each is started."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from forge.adapters.harnesses.base import Launch

NAME = Annotated[str, typer.Argument(help="One of the names that `forge harness list` shows.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(
        name="harness",
        help="Install harnesses, and see how they are started.",
        no_args_is_help=True,
        rich_markup_mode=None,
    )
    group.command(name="list", epilog="Example: forge harness list")(show)
    group.command(name="install", epilog="Example: forge harness install pi")(install)
    group.command(name="launch", epilog=LAUNCH_EXAMPLE)(launch)
    app.add_typer(group)


def show() -> None:
    """List the harnesses: pinned version, the wire format it speaks, where it is installed."""
    from rich.console import Console
    from rich.table import Table

    from forge.adapters.harnesses import HARNESSES
    from forge.adapters.harnesses.packages import cache_folder

    cache = cache_folder()
    table = Table("harness", "version", "wire", "installed")
    for name, adapter in sorted(HARNESSES.items()):
        where = str(cache / adapter.packages[-1].folder) if adapter.installed(cache) else "no"
        table.add_row(name, adapter.version, adapter.wire, where)
    Console().print(table)


def install(name: NAME) -> None:
    """Fetch a harness at its pinned version into the cache ($FORGE_CACHE, by default ~/.cache/forge)."""
    from forge.adapters.harnesses import find
    from forge.adapters.harnesses.packages import cache_folder

    adapter = find(name)
    adapter.install(cache_folder(), typer.echo)
    typer.echo(f"{adapter.name} {adapter.version} is installed")


LAUNCH_EXAMPLE = (
    "Example: forge harness launch pi --base-url http://127.0.0.1:8100/v1 --api-key none --prompt 'Say hi' --json"
)


def launch(
    name: NAME,
    base_url: Annotated[str, typer.Option(help="What the harness calls; ends in /v1.")],
    api_key: Annotated[str, typer.Option(help="The session's key.")],
    prompt: Annotated[str, typer.Option(help="What the agent is asked.")],
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

    adapter = find(name)
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
