# The images of docker-compose.yml, one target each: proxy, harness, train (policy server, trainer and workers).
# Another base (a mirror, a CUDA image) is a build argument: --build-arg BASE_IMAGE=...; it needs Python 3.11 or newer.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS base
ENV PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 FORGE_CACHE=/opt/forge/cache PATH=/opt/venv/bin:$PATH
# A user that owns nothing of the program; /data and /run/forge are volumes and take their first owner from here.
RUN useradd --uid 10001 --create-home forge \
 && mkdir -p /data /run/forge /opt/forge/cache /src \
 && chown forge:forge /data /run/forge /opt/forge/cache \
 && python3 -m venv /opt/venv
WORKDIR /src
COPY requirements/proxy.lock requirements/
RUN pip install --quiet --no-deps --require-hashes -r requirements/proxy.lock

FROM base AS proxy
COPY pyproject.toml README.md LICENSE ./
COPY storage storage
COPY proxy proxy
COPY adapters adapters
COPY forge forge
RUN pip install --quiet --no-deps . && cd / && forge --help > /dev/null
USER forge
WORKDIR /
ENTRYPOINT []
CMD ["forge", "proxy", "--help"]

# Every harness at its pinned version, so that changing the harness changes a word, not an image.
FROM proxy AS harness
USER root
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends git ripgrep > /dev/null \
 && rm -rf /var/lib/apt/lists/*
USER forge
ARG HARNESSES="codex pi claude-code opencode openclaw qwen-code gemini-cli hermes mini-swe-agent"
RUN forge harness install ${HARNESSES}

FROM base AS train
COPY requirements.lock ./
RUN pip install --quiet --no-deps --require-hashes -r requirements.lock
# Outside the lock: which build of torch fits is the machine's matter.
ARG TORCH=torch==2.13.0
RUN pip install --quiet "${TORCH}"
COPY pyproject.toml README.md LICENSE ./
COPY storage storage
COPY proxy proxy
COPY adapters adapters
COPY forge forge
RUN pip install --quiet --no-deps . && cd / && forge --help > /dev/null
# Sessions run on any node of the cluster, so a node has the harnesses too.
COPY --from=harness --chown=forge:forge /opt/forge/cache /opt/forge/cache
USER forge
# The model of the embedded policy server: its first start then needs no network.
RUN forge policy fetch
WORKDIR /
CMD ["forge", "policy", "serve", "--help"]
