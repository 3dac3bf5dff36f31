"""StepStream: the queue of a device's work, as far as a step needs it: copies to and from it, and when they are over.

Knows nothing of what is copied. Invariant: what is queued runs in the order it was queued, so that a copy reads what
the work before it wrote, and a buffer of the device may be written anew without waiting.
"""

from __future__ import annotations

from typing import Protocol

import torch


class Event(Protocol):
    """A point in the queue."""

    def wait(self) -> None:
        """Return when all work before it is done. Raises what that work raised."""

    def seconds_since(self, earlier: Event) -> float:
        """Time the device took from there to here; both must be over."""


class StepStream(Protocol):
    """The queue of ``device``."""

    device: torch.device

    def host_buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Memory of the host that `upload` and `download` need not wait for."""

    def pin(self, tensor: torch.Tensor) -> None:
        """Let copies to and from this memory of the host not wait. Raises RuntimeError where that can't be."""

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        """Queue a copy from the host; the host must not change ``source`` before the event."""

    def download(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        """Queue a copy to the host; ``target`` holds it from the event on."""

    def record(self) -> Event:
        """The point that the queue has reached so far."""


class CudaEvent:
    """A point in the current stream, made when it is constructed."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def wait(self) -> None:
        self._event.synchronize()

    def seconds_since(self, earlier: Event) -> float:
        assert isinstance(earlier, CudaEvent)
        return float(earlier._event.elapsed_time(self._event)) / 1000.0


class CudaStream:
    """The current stream of a GPU (CUDA or HIP). Not yet run on one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def host_buffer(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        """Pinned; torch keeps what is let go of, so that asking for it in every step costs no system call."""
        return torch.zeros(size, dtype=dtype, pin_memory=True)

    def pin(self, tensor: torch.Tensor) -> None:
        """In its place: torch's own pinned memory comes in powers of two."""
        runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(runtime.cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))

    def upload(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        target.copy_(source, non_blocking=True)
        return CudaEvent()

    def download(self, source: torch.Tensor, target: torch.Tensor) -> Event:
        target.copy_(source, non_blocking=True)
        return CudaEvent()

    def record(self) -> Event:
        return CudaEvent()
