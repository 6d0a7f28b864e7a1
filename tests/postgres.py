"""A throwaway PostgreSQL server, for tests that stop it and start it again; skipped where none is installed."""

from __future__ import annotations

import os
import pwd
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

BINARIES = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))


@dataclass(frozen=True)
class Postgres:
    folder: Path
    port: int
    as_user: tuple[str, ...]

    def start(self) -> None:
        options = (
            f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder} "
            "-c fsync=off -c synchronous_commit=off -c full_page_writes=off"
        )
        self._tool(
            "pg_ctl", "-D", str(self.folder / "pg"), "-w", "-l", str(self.folder / "log"), "-o", options, "start"
        )

    def stop(self) -> None:
        self._tool("pg_ctl", "-D", str(self.folder / "pg"), "-w", "-m", "fast", "stop")

    def database(self, encoding: str = "UTF8") -> str:
        """The URL of a fresh one."""
        name = f"t{secrets.token_hex(6)}"
        admin = create_engine(
            f"postgresql+psycopg://postgres@127.0.0.1:{self.port}/postgres", isolation_level="AUTOCOMMIT"
        )
        with admin.connect() as db:
            db.execute(
                text(f"CREATE DATABASE {name} ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0")
            )
        admin.dispose()
        return f"postgresql://postgres@127.0.0.1:{self.port}/{name}"

    def _tool(self, name: str, *line: str) -> None:
        program = str(BINARIES[-1].parent / name)
        done = subprocess.run(
            [*self.as_user, program, *line], capture_output=True, timeout=120, cwd=self.folder, check=False
        )
        assert done.returncode == 0, done.stderr.decode()


@contextmanager
def postgres() -> Iterator[Postgres]:
    """Running."""
    if not BINARIES:
        pytest.skip("no PostgreSQL server is installed under /usr/lib/postgresql")
    pytest.importorskip("psycopg", reason="psycopg is not installed (extra: postgres)")
    with tempfile.TemporaryDirectory(prefix="forge-pg-") as folder:
        server = Postgres(Path(folder), _free_port(), _account(folder))
        cluster = str(server.folder / "pg")
        server._tool("initdb", "-D", cluster, "-U", "postgres", "-A", "trust", "--no-sync")
        server.start()
        try:
            yield server
        finally:
            if (server.folder / "pg" / "postmaster.pid").exists():
                server.stop()


def _account(folder: str) -> tuple[str, ...]:
    """PostgreSQL does not run as root."""
    if os.geteuid() != 0:
        return ()
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        pytest.skip("PostgreSQL does not run as root and there is no user postgres")
    os.chown(folder, account.pw_uid, account.pw_gid)
    return ("runuser", "-u", "postgres", "--")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
