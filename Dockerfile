# syntax=docker/dockerfile:1
# Two images from one file:
#   docker build --target cpu -t slipstream:cpu .
#   docker build --target gpu -t slipstream:gpu .
# The server runs as an ordinary user; models live in the volume /models.

ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS base
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    VIRTUAL_ENV=/opt/slipstream/.venv \
    PATH=/opt/slipstream/.venv/bin:$PATH \
    SLIPSTREAM_CACHE=/models/slipstream \
    HF_HOME=/models/huggingface \
    HOST=0.0.0.0 \
    PORT=8000
RUN useradd --create-home --uid 10001 slipstream \
    && install --directory --owner=slipstream /models
WORKDIR /opt/slipstream
# What decides the dependencies comes first, so that a change of code does not fetch them again.
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY server/version.py server/version.py
RUN python -m venv .venv

# Torch's CPU builds lie in an index of their own: --build-arg TORCH_INDEX=...
FROM base AS cpu-dependencies
ARG TORCH_INDEX=""
RUN version="$(sed -n 's/^torch==//p' constraints/ci.txt)"; \
    pip install ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} "torch==${version}+cpu" \
    || pip install "torch==${version}"
RUN pip install --constraint constraints/ci.txt .

FROM base AS gpu-dependencies
RUN pip install --constraint constraints/ci.txt ".[gpu]"

FROM cpu-dependencies AS cpu
ENV CONFIG=/opt/slipstream/configs/cpu.toml
COPY . .
RUN pip install --no-deps --editable .
# The compiler is needed for a moment only; the image must suit any processor it is run on.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ \
    && python -m engine.kernels.cpu --all \
    && apt-get purge --yes --auto-remove g++ && rm -rf /var/lib/apt/lists/*
USER slipstream
VOLUME /models
EXPOSE 8000
# The first start fetches the model.
HEALTHCHECK --start-period=180s --interval=15s --timeout=5s --retries=3 \
    CMD ["python", "docker/healthcheck.py"]
ENTRYPOINT ["docker/entrypoint.sh"]

FROM gpu-dependencies AS gpu
ENV CONFIG=/opt/slipstream/configs/gpu.toml \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY . .
RUN pip install --no-deps --editable .
USER slipstream
VOLUME /models
EXPOSE 8000
HEALTHCHECK --start-period=180s --interval=15s --timeout=5s --retries=3 \
    CMD ["python", "docker/healthcheck.py"]
ENTRYPOINT ["docker/entrypoint.sh"]
