"""Tells a running proxy that new weights lie on disk; it loads them into every replica as one operation."""

from __future__ import annotations

from forge.client import ControlClient
from forge.policy.weights import Published
from forge.storage.errors import BadInput
from forge.trainer.config import TrainConfig


async def announce(url: str, token: str, published: Published) -> None:
    async with ControlClient(url, token) as control:
        await control.publish(
            version=published.version,
            path=str(published.path.resolve()),
            digest=published.digest,
            lineage=published.lineage,
        )


def control_token(config: TrainConfig) -> str:
    path = config.control_token_file or config.data / "control.token"
    try:
        return path.read_text().strip()
    except OSError as error:
        raise BadInput(
            f"cannot read the control token {path}: {error.strerror}",
            "give --control-token-file the file that forge proxy wrote",
        ) from error
