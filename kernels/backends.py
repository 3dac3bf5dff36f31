"""The choice of an attention backend for a device, made once at start-up.

Knows which backends exist, not how they work; each is imported only when chosen.
"""

from __future__ import annotations

import torch

from kernels.attention import AttentionBackend


def choose_backend(device: torch.device) -> tuple[AttentionBackend, list[str]]:
    """Return the best backend for ``device`` and the warnings, one line each, that its user should see.

    Raises ValueError for a kind of device that no backend serves.
    """
    if device.type == "cuda":
        from kernels.gpu.backend import TritonBackend

        return TritonBackend(), []
    if device.type == "cpu":
        return _choose_cpu_backend()
    raise ValueError(f"no attention backend for device {device}: use cuda or cpu")


def _choose_cpu_backend() -> tuple[AttentionBackend, list[str]]:
    from kernels.cpu.backend import NativeBackend, TorchBackend
    from kernels.cpu.library import LibraryError, NativeLibrary

    try:
        return NativeBackend(NativeLibrary()), []
    except LibraryError as error:
        return TorchBackend(), [f"{error}. Attention falls back to torch operations, several times slower."]
