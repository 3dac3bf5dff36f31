#!/usr/bin/env bash
# Proves the Triton kernels on the GPU of this machine and measures them, in less than ten minutes. Needs python with
# torch, triton, numpy and pytest, and nothing else of this repository installed.
#
#   benchmarks/gpu_check.sh                                 writes gpu_check.json and gpu_check.md
#   PYTHON=.venv/bin/python benchmarks/gpu_check.sh --output results/h200
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec "${PYTHON:-python3}" -m benchmarks.gpu_check "$@"
