# syntax=docker/dockerfile:1
#
#   docker build -t octavo .                                          torch for CPUs
#   docker build -t octavo --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#   docker run -p 8000:8000 octavo                                    the demo model
#   docker run -p 8000:8000 -v ~/models:/models octavo /models/some-model --max-model-len 8192
#   docker run -p 8000:8000 --gpus all octavo ...                     with a CUDA build of torch

ARG PYTHON_VERSION=3.12
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu


FROM python:${PYTHON_VERSION}-slim AS builder

RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ \
    && rm -rf /var/lib/apt/lists/*

# torch before the sources, so that a change of the sources does not install it again. Its CPU build runs without Triton.
ARG TORCH_INDEX
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/octavo
ENV PATH=/opt/octavo/bin:$PATH
WORKDIR /src
COPY constraints.txt ./
RUN pip install -c constraints.txt --extra-index-url ${TORCH_INDEX} torch

COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels . \
    && pip install -c constraints.txt --extra-index-url ${TORCH_INDEX} "$(ls /wheels/octavo-*.whl)[demo]" \
    && case "$TORCH_INDEX" in */cpu) pip uninstall -y triton ;; esac


FROM python:${PYTHON_VERSION}-slim

# On a GPU, Triton compiles a small launcher with the C compiler when a kernel first runs.
ARG TORCH_INDEX
RUN useradd --create-home --uid 1000 octavo \
    && case "$TORCH_INDEX" in */cpu) ;; *) \
        apt-get update && apt-get install --no-install-recommends -y gcc libc6-dev && rm -rf /var/lib/apt/lists/* ;; \
    esac

COPY --from=builder /opt/octavo /opt/octavo
ENV PATH=/opt/octavo/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HF_HOME=/home/octavo/.cache/huggingface

USER octavo
WORKDIR /home/octavo
EXPOSE 8000

# A large model takes minutes to load; /health answers as soon as the API process is up.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]

ENTRYPOINT ["octavo", "serve", "--host", "0.0.0.0"]
