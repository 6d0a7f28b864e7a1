"""``forge intercept``: a program whose endpoint cannot be set, recorded through mitmproxy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge.proxy.config import Record
from forge.proxy.intercept.hosts import Others, rules
from forge.storage.errors import BadInput

if TYPE_CHECKING:
    from forge.intercept.command import Ended, InterceptConfig

EXAMPLE = "Example: forge intercept --policy http://127.0.0.1:8000 -- python agent.py --model gpt-5"

Command = Annotated[list[str] | None, typer.Argument(help="The program and its arguments, after --.")]
Map = Annotated[
    list[str] | None,
    typer.Option("--map", help="HOST or HOST=PREFIX: it is the policy's too, PREFIX is cut off. Can be repeated."),
]
Rest = Annotated[Others, typer.Option(help="All other hosts. pass: untouched, TLS stays closed. block: 403.")]


def register(app: typer.Typer) -> None:
    @app.command(epilog=EXAMPLE, context_settings={"allow_interspersed_args": False})
    def intercept(
        command: Command = None,
        map_hosts: Map = None,
        others: Rest = Others.PASS,
        policy: Annotated[
            str | None, typer.Option(help="URL of a policy server. [the embedded one, started and stopped]")
        ] = None,
        control: Annotated[
            str | None, typer.Option(help="Control plane URL of a running proxy. [a proxy is started and stopped]")
        ] = None,
        control_token_file: Annotated[
            Path | None, typer.Option(envvar="FORGE_CONTROL_TOKEN_FILE", help="That proxy's control token.")
        ] = None,
        data: Annotated[Path, typer.Option(help="Where the dataset is.")] = Path("data"),
        run_name: Annotated[str | None, typer.Option("--run", help="Name of the run. [date and time]")] = None,
        model: Annotated[str | None, typer.Option(help="Model name to ask the policy server for.")] = None,
        record: Annotated[Record, typer.Option(help="strict: every call must be able to train.")] = Record.STRICT,
        install: Annotated[
            bool, typer.Option("--install", help="Only fetch mitmproxy into the cache; else the first use does.")
        ] = False,
    ) -> None:
        """Run a program that calls a model provider by itself, and serve those calls from the policy, recorded.

        Its calls to OpenAI, Anthropic, Google and OpenRouter become one session; the provider is never called and its
        key goes nowhere. It works for programs that honour the proxy and CA variables (Python, Node 24, Rust, Go,
        curl), which only this program gets; the system's trust store is not touched. The exit code is the program's.
        """
        from forge.intercept import environment
        from forge.intercept.command import InterceptConfig
        from forge.run_config import new_run_id

        if install:
            environment.install(_say)
            _say(f"mitmproxy is installed in {environment.folder()}")
            return
        if not command:
            raise BadInput("no program is given", "put it after --, e.g. forge intercept -- python agent.py")
        config = InterceptConfig(
            command=tuple(command),
            rules=rules(others, map_hosts or ()),
            data=data.absolute(),
            run_id=run_name or new_run_id(),
            record=record,
            policy=policy,
            control=control,
            control_token_file=control_token_file,
            model=model,
        )
        raise typer.Exit(_carry_out(config))


def _carry_out(config: InterceptConfig) -> int:
    from forge.intercept.command import intercept
    from forge.signals import until_signalled

    ended = asyncio.run(until_signalled(intercept(config, _say)))
    for line in _report(config, ended):
        _say(line)
    return ended.exit_code


def _report(config: InterceptConfig, ended: Ended) -> list[str]:
    session, counts = ended.closed.session, ended.closed.calls
    line = f"session {session.session_id} is {session.status}: {counts.calls} calls"
    line += f" ({counts.statuses.get('ok', 0)} ok), {counts.output_tokens} tokens, {len(ended.closed.samples)} rows"
    lines = [line]
    if not counts.calls:
        lines.append(f"no call came to the policy; refused hosts and failed TLS are in {config.log}")
    lines += [f"{count} calls cannot train: {reason}" for reason, count in counts.untrainable.items()]
    return [*lines, f"all of it: forge show {session.session_id} --data {config.data}"]


def _say(text: str) -> None:
    """To stderr: stdout is the program's."""
    typer.echo(text, err=True)
