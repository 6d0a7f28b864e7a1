"""Runs a command with a Docker engine at hand: ``python tests/stack_env.py -- pytest -m stack tests/stack``.

An engine that runs is used. Otherwise, as root on Debian or Ubuntu, one of our own is started for the command, from
the distribution's packages, and ended with it. Where the usual base image cannot be pulled, one is made with
debootstrap from this machine's package mirror. That image and our engine's layers are kept in ``$FORGE_CACHE/stack``,
so that a second run builds only what depends on changed files, by Docker's own hash of them; containers and volumes are
not kept. What cannot be had is said, and the exit code is then 0: nothing was tested, nothing failed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forge.storage.cache import cache_root, making

PACKAGES: Final = ("docker.io", "iptables", "docker-compose", "debootstrap")
BASE: Final = "python:3.11-slim"
POSTGRES: Final = "postgres:17"
OWN_POSTGRES: Final = "forge-test-postgres"
SUITE: Final = "bookworm"
OWN_BASE: Final = "forge-test-base"
CERTIFICATES: Final = "/etc/ssl/certs/ca-certificates.crt"
TRUSTED: Final = "/etc/ssl/trusted.crt"
"""In the image; a package that is installed later would write its own list over the usual one."""
WHEELS: Final = "/opt/wheels"
TRUST: Final = ("PIP_CERT", "SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS")
START_S: Final = 30.0
KEPT: Final = "168h"
"""How long layers stay that no image of a name is made of: of earlier builds, or of a stage that was copied from."""


class NotHere(Exception):
    """This machine cannot have it; the text says why."""


def main() -> int:
    args = sys.argv[1:]
    if args[:1] != ["--"] or not args[1:]:
        sys.exit(f"usage: {sys.argv[0]} -- COMMAND")
    try:
        with engine() as env:
            env["FORGE_TEST_BASE"] = base(env)
            env["FORGE_TEST_POSTGRES"] = postgres(env)
            return subprocess.run(args[1:], env=env, check=False).returncode
    except NotHere as why:
        print(f"the stack was not tested: {why}")
        return 0


@contextmanager
def engine() -> Iterator[dict[str, str]]:
    """The environment in which ``docker`` finds its engine."""
    env = dict(os.environ)
    if answers(env):
        yield env
        return
    install()
    kept = cache_root() / "stack" / "docker"
    # Short: a unix socket's path has 107 characters.
    with (
        making(kept, lambda: print("another process uses the engine's layers, waiting", flush=True)),
        tempfile.TemporaryDirectory(prefix="forge-docker-") as folder,
    ):
        root = Path(folder)
        env |= {"DOCKER_HOST": f"unix://{root}/socket", "PATH": f"/usr/bin:{env.get('PATH', os.defpath)}"}
        command = ["dockerd", "--host", env["DOCKER_HOST"], "--data-root", str(kept)]
        command += ["--exec-root", str(root / "exec"), "--pidfile", str(root / "pid")]
        with (root / "log").open("wb") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log, env=env)
        try:
            wait(daemon, env, root / "log")
            tidy(env)  # of a run that was killed: its containers have come back with the engine
            yield env
            tidy(env)
        finally:
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(60)


def tidy(env: dict[str, str]) -> None:
    """Of our engine: every container and volume goes, and images that newer builds replaced long ago."""
    left = subprocess.run(["docker", "ps", "--all", "--quiet"], env=env, capture_output=True, text=True, check=False)
    for command in (
        *(["rm", "--force", "--volumes", container] for container in left.stdout.split()),
        ["volume", "prune", "--all", "--force"],
        ["network", "prune", "--force"],
        ["image", "prune", "--force", "--filter", f"until={KEPT}"],
    ):
        subprocess.run(["docker", *command], env=env, capture_output=True, check=False)


def answers(env: dict[str, str]) -> bool:
    if shutil.which("docker", path=env.get("PATH")) is None:
        return False
    return subprocess.run(["docker", "info"], env=env, capture_output=True, check=False).returncode == 0


def install() -> None:
    """Debian's engine, if it is not there."""
    if all(Path("/usr/sbin", name).exists() for name in ("dockerd", "debootstrap", "iptables")):
        return
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise NotHere("no Docker engine answers, and one can be installed only by root on Debian or Ubuntu")
    print("installing " + " ".join(PACKAGES), flush=True)
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", *command], env=quiet, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotHere(f"apt-get {command[0]} failed: {done.stderr.strip()[-300:]}")


def wait(daemon: subprocess.Popen[bytes], env: dict[str, str], log: Path) -> None:
    until = time.monotonic() + START_S
    while not answers(env):
        if daemon.poll() is not None or time.monotonic() > until:
            daemon.kill()
            raise NotHere(f"dockerd does not start here: {log.read_text(errors='replace').strip()[-300:]}")
        time.sleep(0.2)


def base(env: dict[str, str]) -> str:
    """An image with Python 3.11 that our Dockerfile can start from."""
    if subprocess.run(["docker", "pull", "-q", BASE], env=env, capture_output=True, check=False).returncode == 0:
        return BASE
    mirror = debian_mirror()
    kept = cache_root() / "stack" / f"{SUITE}.tar"
    kept.parent.mkdir(parents=True, exist_ok=True)
    with making(kept, lambda: print("another process makes the base image, waiting")):
        if not kept.exists():
            print("making a base image with debootstrap", flush=True)
            bootstrap(mirror, kept)
    with kept.open("rb") as tar:
        name = f"{OWN_BASE}:{hashlib.file_digest(tar, 'blake2b').hexdigest()[:16]}"
    if subprocess.run(["docker", "image", "inspect", name], env=env, capture_output=True, check=False).returncode == 0:
        return name  # imported anew it would be another image to Docker, and nothing built on it would be found
    change = [f"--change=ENV {name}={TRUSTED}" for name in TRUST]
    change.append(f"--change=ENV PIP_FIND_LINKS={WHEELS}")
    with kept.open("rb") as tar:
        made = subprocess.run(["docker", "import", *change, "-", name], stdin=tar, env=env, capture_output=True)
    if made.returncode != 0:
        raise NotHere(f"docker import failed: {made.stderr.decode()[-300:]}")
    return name


def postgres(env: dict[str, str]) -> str:
    """The official image, or one made from the base."""
    if subprocess.run(["docker", "pull", "-q", POSTGRES], env=env, capture_output=True, check=False).returncode == 0:
        return POSTGRES
    file = Path(__file__).parent / "stack" / "postgres.Dockerfile"
    command = ["docker", "build", "-q", "-t", OWN_POSTGRES, "--build-arg", f"BASE_IMAGE={env['FORGE_TEST_BASE']}", "-"]
    made = subprocess.run(command, stdin=file.open("rb"), env=env, capture_output=True, check=False)
    if made.returncode != 0:
        raise NotHere(f"PostgreSQL's image cannot be built: {made.stderr.decode()[-300:]}")
    return OWN_POSTGRES


def debian_mirror() -> str:
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for line in file.read_text().splitlines():
            if line.startswith("URIs:"):
                return line.split()[1]
    raise NotHere(f"{BASE} cannot be pulled, and no Debian mirror is known to make it from")


def bootstrap(mirror: str, into: Path) -> None:
    """With this machine's certificates: whoever stands between it and the package index stands there for containers."""
    packages = "--include=ca-certificates,python3,python3-pip,python3-venv"
    with tempfile.TemporaryDirectory(prefix="forge-base-") as folder:
        root = Path(folder, "root")
        done = subprocess.run(
            ["debootstrap", "--variant=minbase", packages, SUITE, str(root), mirror], capture_output=True, check=False
        )
        if done.returncode != 0:
            raise NotHere(f"debootstrap failed: {done.stdout.decode()[-300:]}")
        shutil.copy(CERTIFICATES, root / TRUSTED.lstrip("/"))
        wheel(root / WHEELS.lstrip("/"))
        whole = into.with_suffix(".new")
        subprocess.run(["tar", "-C", str(root), "-cf", str(whole), "."], check=True)
        whole.rename(into)


def wheel(into: Path) -> None:
    """The build of torch that this environment has: the package index's own brings 3 GB for GPUs."""
    version = importlib.metadata.version("torch").split("+")[0]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(into), f"torch=={version}"]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NotHere(f"torch cannot be fetched: {done.stderr.strip()[-300:]}")


if __name__ == "__main__":
    sys.exit(main())
