# syntax=docker/dockerfile:1
#
#   docker build -t octavo:cpu .                                      torch for CPUs; any x86-64 or Arm server
#   docker build -t octavo:cuda --target cuda .                       torch with CUDA
#   docker run -p 8000:8000 octavo:cpu                                the demo model
#   docker run -p 8000:8000 -v octavo:/var/cache/octavo octavo:cpu some/hub-model
#   docker run -p 8000:8000 -v ~/models:/models:ro octavo:cpu /models/some-model --max-model-len 8192
#   docker run -p 8000:8000 --gpus all --read-only --tmpfs /tmp octavo:cuda ...
#
# An image is, from the bottom up: Python, (cuda) a C compiler, every dependency, Octavo. Only the last few megabytes
# change with the sources.

ARG PYTHON_VERSION=3.12
ARG CPU_INDEX=https://download.pytorch.org/whl/cpu
ARG CUDA_INDEX=https://download.pytorch.org/whl/cu130


# The wheel, the same for all: its native kernels are compiled once per instruction set, and pick one when they run.
FROM python:${PYTHON_VERSION}-slim AS wheel

RUN apt-get update \
    && apt-get install --no-install-recommends -y g++ \
    && rm -rf /var/lib/apt/lists/*
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY . .
RUN pip wheel --no-deps --wheel-dir /wheels .


# An environment without its dependencies yet, and their list: it changes with two files, not with the sources.
FROM python:${PYTHON_VERSION}-slim AS requirements

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PATH=/opt/octavo/bin:$PATH
RUN python -m venv /opt/octavo
WORKDIR /src
COPY pyproject.toml constraints.txt ./
RUN python -c "import tomllib; p = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
print(*p['dependencies'], *p['optional-dependencies']['demo'], sep='\n')" > requirements.txt


# Triton is for GPUs; torch's build for CPUs runs without.
FROM requirements AS cpu-environment

ARG CPU_INDEX
RUN sed -i '/^triton/d' requirements.txt \
    && pip install -c constraints.txt --extra-index-url ${CPU_INDEX} -r requirements.txt


FROM requirements AS cuda-environment

ARG CUDA_INDEX
RUN pip install -c constraints.txt --extra-index-url ${CUDA_INDEX} -r requirements.txt


# What every image runs as. All that is written while it runs goes to the cache or to /tmp, so that the root file system
# may be read-only.
FROM python:${PYTHON_VERSION}-slim AS runtime

ENV PATH=/opt/octavo/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    OCTAVO_CACHE=/var/cache/octavo \
    HF_HOME=/var/cache/octavo/huggingface \
    TRITON_CACHE_DIR=/var/cache/octavo/triton
RUN useradd --create-home --uid 1000 octavo \
    && install -d -o octavo -g octavo /var/cache/octavo
VOLUME /var/cache/octavo
WORKDIR /home/octavo
EXPOSE 8000

# /health is 503 until the model is loaded, which may take minutes; a failure before the start period is over counts
# for nothing. It asks port 8000, so leave --port alone and publish another one: -p 9000:8000.
HEALTHCHECK --interval=15s --timeout=5s --start-period=10m --start-interval=3s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health', timeout=4)"]

ENTRYPOINT ["octavo", "serve", "--host", "0.0.0.0"]


FROM runtime AS cuda

# Triton compiles a small launcher with the C compiler when a kernel first runs.
RUN apt-get update \
    && apt-get install --no-install-recommends -y gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=cuda-environment /opt/octavo /opt/octavo
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps /wheels/octavo-*.whl
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 1000


# The last, and so what is built when no target is named.
FROM runtime AS cpu

COPY --from=cpu-environment /opt/octavo /opt/octavo
RUN --mount=type=bind,from=wheel,source=/wheels,target=/wheels \
    pip install --no-deps /wheels/octavo-*.whl
USER 1000
