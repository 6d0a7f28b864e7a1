"""Escape attempts against the local runner: each tries, from inside, what promise 11 forbids."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from forge.runners import find
from forge.runners.base import Mount
from forge.storage.errors import ForgeError
from tests.run.jobs import run


def _confined() -> bool:
    try:
        find("local").check()
    except ForgeError:
        return False
    return True


pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not _confined(), reason="bubblewrap cannot work here (no user namespaces)"),
]

PYTHON = tuple(Mount(Path(prefix), prefix) for prefix in sorted({sys.base_prefix, sys.prefix}))


@pytest.fixture
def secret() -> Iterator[Path]:
    """A file of the user's, in the real HOME."""
    path = Path.home() / f".forge-test-{uuid.uuid4().hex}"
    path.write_text("hunter2")
    yield path
    path.unlink()


async def test_it_works_in_its_own_folders(tmp_path: Path) -> None:
    done = await run(tmp_path, "echo hi > a && echo x > $HOME/b && echo y > $TMPDIR/c && pwd && echo $HOME && id -un")
    assert done.ending.exit_code == 0, done.err
    assert done.out.split() == ["/workspace", "/home/agent", "agent"]
    assert (done.folders.workspace / "a").read_text() == "hi\n"
    assert (done.folders.home / "b").exists()
    assert (done.folders.tmp / "c").exists()


async def test_nothing_else_can_be_written(tmp_path: Path) -> None:
    outside = f"/ /usr /usr/bin /etc /opt /home /dev /proc /var {Path.home()} {tmp_path}"
    done = await run(tmp_path, f'for d in {outside}; do touch "$d/forge-escape" 2>/dev/null && echo "$d"; done; true')
    assert done.out == ""
    assert not (Path.home() / "forge-escape").exists()


async def test_no_file_of_the_kernel_can_be_opened_for_writing(tmp_path: Path) -> None:
    script = """
import os
for root in ("/proc/sys", "/proc"):
    for folder, _, names in os.walk(root):
        if folder == "/proc":
            _[:] = [n for n in _ if not n.isdigit() and n not in ("self", "thread-self")]
        for name in names:
            try:
                os.close(os.open(os.path.join(folder, name), os.O_WRONLY | os.O_NONBLOCK))
                print(os.path.join(folder, name))
            except OSError:
                pass
"""
    done = await run(tmp_path, "", argv=(sys.executable, "-I", "-c", script), mounts=PYTHON)
    assert done.ending.exit_code == 0, done.err
    assert done.out == ""


async def test_the_users_home_and_the_data_folder_are_unseen(tmp_path: Path, secret: Path) -> None:
    token = tmp_path / "control.token"
    token.write_text("token")
    done = await run(
        tmp_path, f"cat {secret} {token} /etc/shadow /etc/ssh/* {Path.home()}/.ssh/* /proc/1/root{token}; ls {tmp_path}"
    )
    assert done.out == ""


async def test_links_do_not_reach_out(tmp_path: Path, secret: Path) -> None:
    done = await run(tmp_path, f"ln -s {secret} s; cat s; ln {secret} h; cat h; cat /proc/self/cwd/s")
    assert done.out == ""


async def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-users")
    done = await run(tmp_path, "env; cat /proc/1/environ /proc/*/environ", env={"FORGE_SESSION_KEY": "fs_1"})
    assert "sk-users" not in done.out
    names = {line.split("=")[0] for line in done.out.replace("\0", "\n").splitlines()}
    assert names <= {"PATH", "HOME", "TMPDIR", "LANG", "TERM", "FORGE_SESSION_KEY", "PWD", "OLDPWD", "SHLVL", "_"}


async def test_other_processes_are_unseen_and_unreachable(tmp_path: Path) -> None:
    done = await run(tmp_path, f"ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()} 2>/dev/null && echo reached; true")
    assert int(done.out.split()[0]) <= 6
    assert "reached" not in done.out


async def test_this_machines_paths_are_not_told(tmp_path: Path) -> None:
    done = await run(tmp_path, "cat /proc/1/cmdline; echo; cat /proc/self/mountinfo | wc -l")
    assert str(tmp_path) not in done.out
    assert "--args" in done.out


async def test_no_new_privileges_and_no_nested_namespaces(tmp_path: Path) -> None:
    done = await run(
        tmp_path, "grep -E 'CapEff|CapBnd|NoNewPrivs' /proc/self/status; unshare -U true && echo nested; true"
    )
    assert done.out.split() == ["CapEff:", "0" * 16, "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]


async def test_no_descriptor_of_ours_is_left_open(tmp_path: Path) -> None:
    done = await run(tmp_path, "ls /proc/self/fd")
    assert done.out.split() == ["0", "1", "2", "3"]  # 3: the folder that ls itself reads


async def test_mounts_are_read_only(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "program").write_text("x")
    script = "cat /opt/forge/p/program; echo y > /opt/forge/p/program"
    done = await run(tmp_path, script, mounts=(Mount(package, "/opt/forge/p"),))
    assert done.out == "x"
    assert (package / "program").read_text() == "x"


async def test_loopback_is_reached_but_a_key_still_guards(tmp_path: Path) -> None:
    async def admin(request: web.Request) -> web.Response:
        return web.Response(status=200 if request.headers.get("Authorization") == "Bearer k" else 401)

    app = web.Application()
    app.router.add_post("/pause", admin)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    script = f"""
import urllib.request, urllib.error
try:
    urllib.request.urlopen(urllib.request.Request("http://127.0.0.1:{port}/pause", method="POST"))
except urllib.error.HTTPError as error:
    print(error.code)
"""
    done = await run(tmp_path, "", argv=(sys.executable, "-I", "-c", script), mounts=PYTHON)
    await runner.cleanup()
    assert done.out.strip() == "401", done.err


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


def _daemon(then: str) -> tuple[str, str]:
    """A script that leaves a double-forked daemon in a session of its own, and what its command line says."""
    mark = f"86{uuid.uuid4().int % 10**9:09d}"
    start = f"setsid sh -c 'sleep {mark} & echo up > up; exit' & while [ ! -e up ]; do :; done; {then}"
    return start, f"sleep {mark}"


@pytest.mark.parametrize("runner", ["local", "unconfined"])
async def test_a_daemon_does_not_outlive_a_job_that_ends(tmp_path: Path, runner: str) -> None:
    script, name = _daemon("exit 7")
    done = await run(tmp_path, script, runner=runner)
    assert done.ending.exit_code == 7
    assert not any(name in line for line in _command_lines())


@pytest.mark.parametrize("runner", ["local", "unconfined"])
async def test_a_daemon_does_not_outlive_the_time_limit(tmp_path: Path, runner: str) -> None:
    script, name = _daemon("sleep 1000")
    done = await run(tmp_path, script, runner=runner, seconds=1.0)
    assert done.ending.timed_out
    assert done.ending.exit_code is None
    assert not any(name in line for line in _command_lines())


@pytest.mark.parametrize("runner", ["local", "unconfined"])
async def test_cancelling_at_any_moment_leaves_nothing(tmp_path: Path, runner: str) -> None:
    """Twenty jobs cancelled at twenty moments of their start: the orphans of killed sandboxes would be here."""
    script, name = _daemon("sleep 1000")
    tasks = [asyncio.ensure_future(run(tmp_path / str(n), script, runner=runner)) for n in range(20)]
    for n, task in enumerate(tasks):
        await asyncio.sleep(0.002 * n)
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)
    assert not any(name in line for line in _command_lines())


@pytest.mark.parametrize("runner", ["local", "unconfined"])
async def test_what_cannot_be_started_is_said(tmp_path: Path, runner: str) -> None:
    done = await run(tmp_path, "", argv=("/no/such/program",), runner=runner)
    assert done.ending.exit_code is None
    assert done.ending.not_started is not None
    assert "/no/such/program" in done.ending.not_started


@pytest.mark.parametrize("runner", ["local", "unconfined"])
async def test_a_prompt_that_no_command_line_can_carry_says_what_to_do(tmp_path: Path, runner: str) -> None:
    done = await run(tmp_path, "", runner=runner, argv=("echo", "x" * 200_000))
    assert done.ending.not_started is not None
    assert "task's `files`" in done.ending.not_started


@pytest.mark.parametrize("runner", ["local", "unconfined"])
async def test_a_signal_is_an_exit_code(tmp_path: Path, runner: str) -> None:
    done = await run(tmp_path, "kill -9 $$", runner=runner)
    assert done.ending.exit_code in (137, -9)
