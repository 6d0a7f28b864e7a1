"""What the parent starts as a worker: ``LINK LISTENER``, the descriptors that it inherits."""

from __future__ import annotations

import sys

from forge.proxy.process import run
from forge.proxy.workers.worker import work

if __name__ == "__main__":
    sys.exit(run(work(*map(int, sys.argv[1:]))))
