"""nginx: the practical limit of a proxy, one worker, nothing buffered, nothing recorded."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from bench import process
from bench.setting import Missing, Setting, answers, free_port, started
from bench.targets.base import Running

CONFIG = """
daemon off; master_process off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log crit;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 1m; tcp_nodelay on;
  keepalive_requests 100000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
  uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 512; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 900s;
      proxy_buffer_size 256k; proxy_buffers 8 256k; proxy_busy_buffers_size 256k;
    }}
  }}
}}
"""


@contextmanager
def nginx(set_: Setting, upstream: int) -> Iterator[Running]:
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise Missing("nginx is not installed", "apt-get install nginx-light")
    folder = set_.work / "nginx"
    folder.mkdir(exist_ok=True)
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, upstream=upstream, port=port))
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=True).stderr
    with started([program, "-p", str(folder), "-c", str(config)], folder / "log") as running:
        process.until(lambda: answers(port), "nginx answers", 10)
        yield Running("nginx", port, [running.pid], version=said.strip().partition("/")[2])
