"""Tells a running proxy that new weights lie on disk; it loads them into every replica as one operation."""

from __future__ import annotations

from pathlib import Path

import msgspec

from forge.client import ControlClient
from forge.policy.weights import ADAPTER, Published
from forge.proxy.upstreams.plan import Adapter
from forge.storage.errors import BadInput
from forge.trainer.config import TrainConfig


class _Config(msgspec.Struct, frozen=True):
    """Of peft."""

    base_model_name_or_path: str


def adapter_of(published: Published) -> Adapter | None:
    """The same weights as what was trained of them; None where all were."""
    folder = published.path.resolve() / ADAPTER
    try:
        config = msgspec.json.decode((folder / "adapter_config.json").read_bytes(), type=_Config)
    except FileNotFoundError:
        return None
    except msgspec.DecodeError as error:
        raise BadInput(f"{folder} holds no adapter: {error}", "remove the folder, and publish again") from error
    base = Path(config.base_model_name_or_path)
    return Adapter(path=str(folder), base=str(base.resolve() if base.is_dir() else base))


async def announce(url: str, token: str, published: Published) -> None:
    async with ControlClient(url, token) as control:
        await control.publish(
            version=published.version,
            path=str(published.path.resolve()),
            adapter=adapter_of(published),
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
