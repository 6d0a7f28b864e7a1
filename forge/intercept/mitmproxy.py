"""mitmdump as a child process: started for one data plane, with a CA of its own, and gone with everything it wrote.

The CA's private key lies in a folder that only this user can read and that is removed afterwards. The non-obvious
fact: ``lazy`` and no ``upstream_cert`` together keep mitmdump from calling a provider before the addon has moved the
request to the data plane.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from forge.children import Child
from forge.client import ControlClient
from forge.intercept import environment
from forge.intercept.variables import system_cas, variables
from forge.proxy.config import Limits
from forge.proxy.intercept.hosts import Others, Rules

START_S: Final = 120.0
"""The first start compiles its modules."""
STOP_S: Final = 5.0
SYSTEM_FILE: Final = "system.pem"
CA_FILE: Final = "mitmproxy-ca-cert.pem"


@dataclass(frozen=True, slots=True)
class Interception:
    """A mitmdump that serves."""

    port: int
    token: str
    ca: str
    """This machine's CAs and its own, as PEM."""

    def variables(self, key: str, ca_file: str) -> dict[str, str]:
        """For a program of the session that ``key`` opens; ``ca_file`` holds ``ca`` where the program sees it."""
        return variables(f"http://{self.token}:{key}@127.0.0.1:{self.port}", ca_file)


@asynccontextmanager
async def interception(
    client: ControlClient, rules: Rules, *, folder: Path, log: Path, say: Callable[[str], None]
) -> AsyncIterator[Interception]:
    """Runs mitmdump for the proxy of ``client``; ``folder`` is new, and the caller's to remove.

    Should mitmdump end by itself, the body is cancelled and ``Unavailable`` raised: programs would go on for nothing.
    """
    data_plane = (await client.base_url()).removesuffix("/v1")
    folder.mkdir(mode=0o700)
    token, ready, plan = secrets.token_urlsafe(24), folder / "ready.json", folder / "plan.json"
    system = system_cas()
    (folder / SYSTEM_FILE).write_text(system)
    told = {"upstream": data_plane, "token": token, "hosts": rules.hosts, "block": rules.others is Others.BLOCK}
    plan.write_text(json.dumps(told | {"ready": str(ready)}))
    say("starting mitmproxy")
    child = Child("interception (mitmdump)", _arguments(folder, plan, rules), log, environment.mitmdump())
    try:
        said = await child.ready(ready, START_S)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(child.watch())
            yield Interception(int(said["port"]), token, system + (folder / CA_FILE).read_text())
            watch.cancel()
    except BaseExceptionGroup as failures:  # the body's own, or the watch's
        raise failures.exceptions[0] from None
    finally:
        await child.stop(STOP_S)


def _arguments(folder: Path, plan: Path, rules: Rules) -> list[str]:
    names = "|".join(re.escape(host) for host in sorted({each.host for each in rules.hosts}))
    options = {
        "confdir": str(folder),
        "forge": str(plan),
        "allow_hosts": rf"^({names}):\d+$",  # TLS is opened for these and for no others
        "connection_strategy": "lazy",
        "upstream_cert": "false",
        "onboarding": "false",
        "flow_detail": "0",
        "termlog_verbosity": "warn",
    }
    if (folder / SYSTEM_FILE).stat().st_size:  # for paths beside the policy's, on hosts that have some
        options["ssl_verify_upstream_trusted_ca"] = str(folder / SYSTEM_FILE)
    if rules.others is Others.BLOCK:  # else downloads pass here too
        options["body_size_limit"] = str(Limits().answer_bytes)
    arguments = ["--listen-host", "127.0.0.1", "--listen-port", "0", "--scripts", str(environment.ADDON)]
    return [*arguments, *(word for name, value in options.items() for word in ("--set", f"{name}={value}"))]
