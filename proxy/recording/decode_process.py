"""The decoder as a process: until its journals are decoded, or its proxy ends, or it is told to.

Owns signals and waits; what is decoded, and how, is ``decoder.py``'s. A disk that refuses is waited for.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from pathlib import Path
from typing import Final

from forge.proxy.process import settle
from forge.proxy.recording.decoder import KEEP_BYTES, Decoder, lease_path
from forge.proxy.recording.rebuild import require_whole
from forge.storage.errors import Unavailable
from forge.storage.lease import SILENT_S, Watch

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 0.05
BUSY_FRAMES: Final = 256
"""A step that found fewer frames is followed by a pause, so that a trickle of calls does not keep a core awake."""
RETRY_SECONDS: Final = 1.0
"""Wait after a failed write (a full disk) before the interval is written again."""


def run(
    data: Path,
    *,
    once: bool = False,
    rebuild: bool = False,
    keep_bytes: int = KEEP_BYTES,
    catalog_url: str | None = None,
    follow_parent: int | None = None,
) -> None:
    """The process. ``once`` and ``rebuild``: ends when all that is there is decoded. ``follow_parent``: ends when
    the parent process, of this pid, has."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    # A Ctrl-C goes to the whole group: the proxy still has to write its last cut, so its decoder waits for it.
    signal.signal(signal.SIGINT, signal.SIG_IGN if follow_parent is not None else lambda *_: stop.set())
    decoder = _open(data, keep_bytes, catalog_url, stop, follow_parent)
    if decoder is None:
        return
    settle()
    try:
        if rebuild:
            decoder.start_over()
        if once or rebuild:
            decoder.catch_up()
            if decoder.seal():
                decoder.catch_up()
            require_whole(data, decoder.damage)
        else:
            _follow(decoder, stop, follow_parent)
    finally:
        decoder.close()


def _follow(decoder: Decoder, stop: threading.Event, parent: int | None) -> None:
    """Until told to stop, or the parent is gone; then once more what is there."""
    failing = False
    while not _over(stop, parent):
        frames = 0
        try:
            frames = decoder.step()
            if not frames:
                decoder.drop_stale()
                decoder.mend_catalog()
            failing = False
        except OSError as error:
            if not failing:
                log.error("decoding waits for the disk: %s", error)
            failing = True
        if frames < BUSY_FRAMES:
            stop.wait(RETRY_SECONDS if failing else POLL_SECONDS)
    decoder.catch_up()


def _open(
    data: Path, keep: int, url: str | None, stop: threading.Event, parent: int | None, silent_s: float = SILENT_S
) -> Decoder | None:
    """With a parent it stands by while another decoder is at work; None if it was told to end meanwhile."""
    watch: Watch | None = None
    while True:
        try:
            return Decoder(data, keep_bytes=keep, catalog_url=url, take_over=watch is not None and watch.is_silent())
        except Unavailable as error:
            if parent is None:
                raise
            if watch is None:
                log.info("standing by: %s", error.message)
                watch = Watch(lease_path(data), silent_s)
            if _over(stop, parent):
                return None
            stop.wait(POLL_SECONDS)


def _over(stop: threading.Event, parent: int | None) -> bool:
    return stop.is_set() or (parent is not None and os.getppid() != parent)
