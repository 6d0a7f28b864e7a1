"""``forge policy``: the embedded policy server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from forge.storage.errors import BadInput


def register(app: typer.Typer) -> None:
    policy = typer.Typer(no_args_is_help=True, help="The embedded policy server: a small real model, no GPU needed.")
    policy.command("serve")(serve)
    policy.command("fetch")(fetch)
    app.add_typer(policy, name="policy")


def serve(
    port: int = typer.Option(8200, help="Port to listen on; 0 takes a free one (see --ready-file)."),
    host: str = typer.Option("127.0.0.1", help="Address to listen on."),
    model: str = typer.Option(
        "smollm2-135m-instruct", help="A known name, or a Hugging Face directory (Llama, safetensors)."
    ),
    served_model_name: str = typer.Option("policy", help="The model name that requests use."),
    slots: int = typer.Option(8, min=1, max=64, help="Answers made at the same time; more wait in a queue."),
    max_model_len: int = typer.Option(0, min=0, help="Longest prompt + answer in tokens; 0: what the model takes."),
    prefix_cache_mb: int = typer.Option(
        1024, min=0, help="Memory for the KV of finished answers, reused by longer prompts."
    ),
    key_file: Annotated[
        Path | None, typer.Option(help="File with the bearer key that every route but /health then wants.")
    ] = None,
    ready_file: Annotated[
        Path | None, typer.Option(help="Written (JSON: pid, base_url, model) once requests are served.")
    ] = None,
    version: int = typer.Option(0, min=0, help="Policy version of the weights at start."),
    lineage: str = typer.Option("default", help="Policy lineage that the version counts in."),
) -> None:
    """Serve a small model with vLLM's field names, token ids and log probs.

    Example: forge policy serve --port 8200
    """
    from forge.policy.model import ensure_model
    from forge.policy.options import Options
    from forge.policy.serve import bind
    from forge.policy.serve import serve as run

    key = _key(key_file)
    sock = bind(host, port)
    directory = ensure_model(model)

    options = Options(
        directory=directory.resolve(),
        name=served_model_name,
        slots=slots,
        max_model_len=max_model_len or None,
        prefix_cache_bytes=prefix_cache_mb << 20,
        key=key,
        version=str(version),
        lineage=lineage,
    )
    run(sock, options, ready_file)


def fetch(model: str = typer.Option("smollm2-135m-instruct", help="A known name.")) -> None:
    """Fetch and convert the model ahead of time, and print its directory.

    Example: forge policy fetch
    """
    from forge.policy.model import ensure_model

    typer.echo(ensure_model(model))


def _key(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise BadInput(f"--key-file {path}: {error.strerror}", "write the key into that file") from error
    if not key:
        raise BadInput(f"--key-file {path} is empty", "write the key into that file")
    return key
