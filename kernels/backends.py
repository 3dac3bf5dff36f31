"""The choice of an attention backend for a device, made once at start-up.

Knows which backends exist, not how they work; each is imported only when chosen.
"""

from __future__ import annotations

import torch

from kernels.attention import AttentionBackend

FIRST_FP8_CAPABILITY = (8, 9)


def choose_backend(device: torch.device, *, is_deterministic: bool = False) -> tuple[AttentionBackend, list[str]]:
    """Return the best backend for ``device`` and the warnings, one line each, that its user should see.

    ``is_deterministic``: a row's bits must not depend on its batch, nor on the chunks of its prompt.
    Raises ValueError, with one sentence, for a kind of device that no backend serves, or none that is deterministic.
    """
    if device.type == "cuda":
        from kernels.gpu.backend import TritonBackend

        return TritonBackend(is_deterministic=is_deterministic), []
    if device.type == "cpu":
        return _choose_cpu_backend(is_deterministic)
    raise ValueError(f"no attention backend for device {device}: use cuda or cpu")


def check_page_dtype(dtype: torch.dtype, device: torch.device) -> None:
    """Raise ValueError, with one sentence, where the backend of ``device`` has no pages of ``dtype``."""
    if dtype != torch.float8_e4m3fn or device.type != "cuda":
        return
    if torch.version.hip is not None:
        raise ValueError("fp8 pages are not supported on AMD GPUs; use int8, which takes as little memory")
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) < FIRST_FP8_CAPABILITY:
        raise ValueError(
            f"{torch.cuda.get_device_name(device)} (compute capability {major}.{minor}) has no fp8, which begins with "
            "8.9; use int8, which takes as little memory and runs everywhere"
        )


def _choose_cpu_backend(is_deterministic: bool) -> tuple[AttentionBackend, list[str]]:
    from kernels.cpu.backend import NativeBackend, TorchBackend
    from kernels.cpu.library import LibraryError, NativeLibrary, TileSupport

    reasons = {
        TileSupport.NOT_GRANTED: "the system does not let this process use it",
        TileSupport.WRONG: "it fails its check against AVX-512; please report this",
    }
    try:
        library = NativeLibrary()
        reason = reasons.get(library.tile_support)
        warnings = [] if reason is None else [f"This processor has AMX, but {reason}. Products use AVX-512 instead."]
        return NativeBackend(library, is_deterministic=is_deterministic), warnings
    except LibraryError as error:
        if is_deterministic:
            raise ValueError(f"{error}. Without it attention on CPUs is not deterministic") from error
        return TorchBackend(), [f"{error}. Attention falls back to torch operations, several times slower."]
