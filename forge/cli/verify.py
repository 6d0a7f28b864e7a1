"""``forge verify``: the audit of one run."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from forge.storage.errors import BadInput

if TYPE_CHECKING:
    from forge.storage.dataset import Dataset
    from forge.verify.report import Report, Thresholds


def register(app: typer.Typer) -> None:
    app.command(name="verify", epilog="Example: forge verify hello --data data --model smollm2-135m-instruct")(verify)


def verify(
    run: Annotated[str, typer.Argument(help="The run; `forge sessions` names the runs.")],
    data: Annotated[Path, typer.Option(help="The data directory.")] = Path("data"),
    policy: Annotated[
        str | None, typer.Option(help="URL of a policy server that scores calls again, of the version it serves.")
    ] = None,
    policy_key_file: Annotated[Path | None, typer.Option(help="File with that server's bearer key.")] = None,
    model: Annotated[
        str | None, typer.Option(help="Model directory or name that scores them here, by transformers in fp32.")
    ] = None,
    sample: Annotated[
        int, typer.Option(min=1, help="Calls to score: some of every harness, dialect, kind, version and length.")
    ] = 32,
    max_mean: Annotated[float, typer.Option(min=0, help="Mean drift that is allowed, in nats a token.")] = 0.05,
    max_p99: Annotated[float, typer.Option(min=0, help="The same at the 99th percentile.")] = 0.5,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Prove a run: is all of it there, is it what was sampled, and do the log probs belong to the weights it names?

    Without --policy or --model the checks that need no model are made: the journal against the rows, rows against
    calls, counts, and the harnesses' own records. Exit code 0: the run holds; 3: it does not, each finding named.
    """
    from forge.overview import opened
    from forge.terminal import console
    from forge.verify.page import print_report
    from forge.verify.report import Thresholds

    if policy is not None and model is not None:
        raise BadInput("--policy and --model both score", "name one of them")
    report = asyncio.run(
        _audit(opened(data), run, policy, policy_key_file, model, sample, Thresholds(max_mean, max_p99))
    )
    if as_json:
        print(json.dumps(report.told(), indent=2))
    else:
        print_report(report, console())
    raise typer.Exit(report.exit_code)


async def _audit(
    dataset: Dataset,
    run: str,
    policy: str | None,
    key_file: Path | None,
    model: str | None,
    size: int,
    limits: Thresholds,
) -> Report:
    from forge.verify.audit import audit

    if run not in (runs := dataset.runs()):
        raise BadInput(f"no run {run!r} in {dataset.data}", f"runs there: {', '.join(runs) or 'none'}")
    if model is not None:
        from forge.policy.model import ensure_model
        from forge.verify.model_scorer import ModelScorer

        scorer = await asyncio.to_thread(ModelScorer, ensure_model(model))
        return await audit(dataset, run, scorer, size=size, limits=limits)
    if policy is None:
        return await audit(dataset, run, None, size=size, limits=limits)
    import aiohttp

    from forge.verify.server_scorer import ServerScorer

    headers = {"Authorization": f"Bearer {key_file.read_text().strip()}"} if key_file is not None else {}
    async with aiohttp.ClientSession(headers=headers) as http:
        return await audit(dataset, run, await ServerScorer.open(http, policy), size=size, limits=limits)
