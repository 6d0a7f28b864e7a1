# The images of docker-compose.yml, one target each: proxy, harness, train (policy server, trainer and workers).
# Another base (a mirror, a CUDA image) is a build argument: --build-arg BASE_IMAGE=...; it needs Python 3.11 or newer.
# What is large (libraries, harnesses, the model) is made from what it depends on alone, below the source that changes.
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

FROM base AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY storage storage
COPY proxy proxy
COPY adapters adapters
COPY forge forge
RUN pip wheel --quiet --no-deps --wheel-dir /wheels .

FROM base AS proxy
WORKDIR /
COPY --from=wheel /wheels /wheels
RUN pip install --quiet --no-deps /wheels/*.whl && forge --help > /dev/null
USER forge
ENTRYPOINT []
CMD ["forge", "proxy", "--help"]

# Every harness at its pinned version, so that changing the harness changes a word, not an image.
FROM base AS harnesses
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends git ripgrep > /dev/null \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /make
COPY forge/__init__.py forge/
COPY storage/__init__.py storage/cache.py storage/errors.py forge/storage/
COPY adapters/__init__.py forge/adapters/
COPY adapters/harnesses forge/adapters/harnesses
USER forge
ARG HARNESSES="codex pi claude-code opencode openclaw qwen-code gemini-cli hermes mini-swe-agent"
RUN python -c 'import sys; from forge.adapters.harnesses import find; from forge.adapters.harnesses.packages import cache_folder; \
    [find(name).install(cache_folder(), print) for name in sys.argv[1:]]' ${HARNESSES}

FROM harnesses AS harness
USER root
WORKDIR /
COPY --from=wheel /wheels /wheels
RUN pip install --quiet --no-deps /wheels/*.whl && forge --help > /dev/null
USER forge

FROM base AS libraries
COPY requirements.lock ./
RUN pip install --quiet --no-deps --require-hashes -r requirements.lock
# Outside the lock: which build of torch fits is the machine's matter.
ARG TORCH=torch==2.13.0
RUN pip install --quiet "${TORCH}"

FROM libraries AS train
# Sessions run on any node of the cluster, so a node has the harnesses too.
COPY --from=harnesses --chown=forge:forge /opt/forge/cache /opt/forge/cache
# The model of the embedded policy server: its first start then needs no network.
WORKDIR /make
COPY forge/__init__.py forge/
COPY storage/__init__.py storage/cache.py storage/errors.py forge/storage/
COPY forge/policy forge/policy
USER forge
RUN python -c 'from forge.policy.model import ensure_model; ensure_model()'
USER root
WORKDIR /
COPY --from=wheel /wheels /wheels
RUN pip install --quiet --no-deps /wheels/*.whl && forge --help > /dev/null
USER forge
CMD ["forge", "policy", "serve", "--help"]
