"""The shared library of CPU kernels: finding, loading and calling it.

Knows the C interface of ``attention.cpp`` (plain structs of pointers, strides and sizes) and nothing of tensors. The
library is built at install time by ``setup.py``, never here. It is linked to no OpenMP runtime: its symbols resolve to
the one that torch has loaded, so that both share one pool of threads.
"""

from __future__ import annotations

import ctypes
import enum
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch  # loads the OpenMP runtime that the library binds to

Function = Callable[..., Any]  # of the library: variant, threads, a call; returns a status
LIBRARY_PATH = Path(__file__).with_name("liboctavo_cpu.so")


class LibraryError(RuntimeError):
    """The native library is missing, does not load, or refused a call; the message says why."""


class Variant(enum.IntEnum):
    """Instruction set that a build of the kernels uses."""

    PORTABLE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_VNNI = 3  # products with quantised weights; all else is AVX512's
    AVX512_BF16 = 4
    AMX = 5  # such products once more; all else is AVX512_BF16's

    @property
    def has_bf16(self) -> bool:
        """Whether it multiplies bfloat16 numbers."""
        return self >= Variant.AVX512_BF16

    @property
    def has_dense_product(self) -> bool:
        """Whether it has products with weights of bfloat16, if only as floats."""
        return self >= Variant.AVX2


class TileSupport(enum.IntEnum):
    """Mirror of ``octavo::TileSupport`` in ``amx.h``: whether products with quantised weights use AMX."""

    WORKS = 0
    ABSENT = 1
    NOT_GRANTED = 2
    WRONG = 3


class AttendCall(ctypes.Structure):
    """Mirror of ``octavo::AttendCall`` in ``paged_attention.h``."""

    _fields_ = [
        ("query", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("query_dtype", ctypes.c_int32),
        ("output", ctypes.c_void_p),
        ("key_pages", ctypes.c_void_p),
        ("value_pages", ctypes.c_void_p),
        ("key_page_stride", ctypes.c_int64),
        ("value_page_stride", ctypes.c_int64),
        ("pages_dtype", ctypes.c_int32),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("key_scale_stride", ctypes.c_int64),
        ("value_scale_stride", ctypes.c_int64),
        ("num_pages", ctypes.c_int64),
        ("query_start_loc", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_table", ctypes.c_void_p),
        ("block_table_stride", ctypes.c_int64),
        ("max_blocks", ctypes.c_int64),
        ("num_tokens", ctypes.c_int32),
        ("num_seqs", ctypes.c_int32),
        ("num_q_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("window", ctypes.c_int32),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("sinks", ctypes.c_void_p),
    ]


class StoreCall(ctypes.Structure):
    """Mirror of ``octavo::StoreCall`` in ``rows.cpp``."""

    _fields_ = [
        ("key", ctypes.c_void_p),
        ("value", ctypes.c_void_p),
        ("key_stride", ctypes.c_int64),
        ("value_stride", ctypes.c_int64),
        ("dtype", ctypes.c_int32),
        ("key_pages", ctypes.c_void_p),
        ("value_pages", ctypes.c_void_p),
        ("key_page_stride", ctypes.c_int64),
        ("value_page_stride", ctypes.c_int64),
        ("pages_dtype", ctypes.c_int32),
        ("key_scales", ctypes.c_void_p),
        ("value_scales", ctypes.c_void_p),
        ("key_scale_stride", ctypes.c_int64),
        ("value_scale_stride", ctypes.c_int64),
        ("slot_mapping", ctypes.c_void_p),
        ("num_pages", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("block_size", ctypes.c_int32),
        ("num_q_heads", ctypes.c_int32),
        ("query", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("query_norm", ctypes.c_void_p),
        ("key_norm", ctypes.c_void_p),
        ("eps", ctypes.c_float),
        ("cosines", ctypes.c_void_p),
        ("sines", ctypes.c_void_p),
        ("pairs", ctypes.c_int64),
    ]


class AddCall(ctypes.Structure):
    """Mirror of ``octavo::AddCall`` in ``rows.h``."""

    _fields_ = [
        ("sum", ctypes.c_void_p),
        ("branch", ctypes.c_void_p),
        ("dtype", ctypes.c_int32),
        ("num_rows", ctypes.c_int64),
        ("columns", ctypes.c_int64),
        ("weight", ctypes.c_void_p),
        ("eps", ctypes.c_float),
    ]


class RecordedCall(ctypes.Structure):
    """Mirror of ``octavo::RecordedCall`` in ``replay.cpp``."""

    _fields_ = [("function", ctypes.c_void_p), ("call", ctypes.c_void_p)]


_REFUSALS = {
    1: "query_start_loc, seq_lens and block_table do not fit each other or the query: check their values",
    2: "a visible entry of block_table is no page: entries must lie in 0 .. num_pages - 1",
    3: "an entry of slot_mapping is no slot: entries must be -1 or lie in 0 .. num_pages * block_size - 1",
    4: "out of memory for the threads' scratch",
    5: "this machine lacks the instructions of the requested variant",
}


_INT, _LONG, _POINTER = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_FUNCTIONS: dict[str, list[type]] = {
    "octavo_add_normed": [_INT, _INT, _POINTER],
    "octavo_attend": [_INT, _INT, _POINTER],
    "octavo_dense_argmax": [_INT, _INT, _POINTER, _POINTER],
    "octavo_dense_prepare": [_INT, _INT, _POINTER],
    "octavo_dense_product": [_INT, _INT, _POINTER],
    "octavo_logprobs": [_INT, _INT, _POINTER],
    "octavo_mask_logits": [_INT, _INT, _POINTER],
    "octavo_packed_bytes": [_INT, _LONG, _LONG],
    "octavo_pack_codes": [_POINTER, _POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG, _LONG, _INT],
    "octavo_pack_stored_rows": [_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT],
    "octavo_pack_sieve": [_INT, _INT, _POINTER, _POINTER],
    "octavo_sieve_bytes": [_LONG, _LONG],
    "octavo_pack_float_rows": [_POINTER, _POINTER, _LONG, _LONG, _LONG, _INT],
    "octavo_product": [_INT, _INT, _POINTER],
    "octavo_product_argmax": [_INT, _INT, _POINTER, _POINTER],
    "octavo_replay": [_INT, _INT, _POINTER, _LONG],
    "octavo_sample": [_INT, _INT, _POINTER],
    "octavo_store_kv": [_INT, _INT, _POINTER],
    "octavo_tile_support": [],
    "octavo_unpack_rows": [_INT, _POINTER, _LONG, _POINTER, _LONG, _POINTER],
}


class CallRecorder(Protocol):
    """Who wants to know which calls are made."""

    def note(self, function: Function, call: ctypes.Structure, tensors: tuple[torch.Tensor, ...]) -> None:
        """``function`` was called; ``tensors`` are those that ``call`` points to and that nobody else may hold."""


class NativeLibrary:
    """The loaded library, bound to one variant of its kernels. Calls release the interpreter lock.

    ``recorder``: hears of every `run` while it is set.
    """

    def __init__(self, path: Path = LIBRARY_PATH, variant: Variant | None = None) -> None:
        """Load ``path``; ``variant`` defaults to the best one that this machine runs."""
        handle = _load(path)
        try:
            sizes = (handle.octavo_attend_call_bytes(), handle.octavo_store_call_bytes())
        except AttributeError:
            sizes = (0, 0)
        if sizes != (ctypes.sizeof(AttendCall), ctypes.sizeof(StoreCall)):
            raise LibraryError(f"{path.name} was built from other sources than these: reinstall octavo")
        if variant is None:
            variant = Variant(handle.octavo_best_variant())
        elif not handle.octavo_supports_variant(int(variant)):
            raise LibraryError(f"this machine cannot run the {variant.name} build of the CPU kernels")
        self.variant = variant
        self.handle = handle
        self.recorder: CallRecorder | None = None
        for name, arguments in _FUNCTIONS.items():
            if not hasattr(handle, name):
                raise LibraryError(f"{path.name} was built from other sources than these: reinstall octavo")
            function = getattr(handle, name)
            function.argtypes = arguments
            function.restype = ctypes.c_int64 if name.endswith("_bytes") else ctypes.c_int

    @property
    def tile_support(self) -> TileSupport:
        """Of this machine, whatever the variant."""
        return TileSupport(self.handle.octavo_tile_support())

    def check(self, status: int) -> None:
        """Raise what ``status`` of a call through ``handle`` means, if anything."""
        if status:
            raise _refusal(status)

    def run(self, function: Function, call: ctypes.Structure, *tensors: torch.Tensor) -> None:
        """Call ``function`` on torch's threads; see `CallRecorder.note` for ``tensors``.

        Raises ValueError when the values of a layout are wrong, or a slot is outside the pages.
        """
        self.check(function(self.variant, torch.get_num_threads(), ctypes.byref(call)))
        if self.recorder is not None:
            self.recorder.note(function, call, tensors)

    def attend(self, call: AttendCall, *tensors: torch.Tensor) -> None:
        """Run paged attention."""
        self.run(self.handle.octavo_attend, call, *tensors)

    def store_kv(self, call: StoreCall, *tensors: torch.Tensor) -> None:
        """Scatter keys and values into pages."""
        self.run(self.handle.octavo_store_kv, call, *tensors)


@cache
def best_library() -> NativeLibrary | None:
    """The library as it is used here unless somebody chooses; None where it is missing."""
    try:
        return NativeLibrary()
    except LibraryError:
        return None


def _refusal(status: int) -> Exception:
    message = _REFUSALS.get(status, f"unknown status {status}")
    return ValueError(message) if status in (1, 2, 3) else LibraryError(message)


def _load(path: Path) -> ctypes.CDLL:
    if not path.exists():
        raise LibraryError(f"{path.name} was not built: install a C++17 compiler (gcc) and reinstall octavo")
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        if not re.search(r"undefined symbol: (GOMP|omp)_", str(error)):
            raise LibraryError(f"{path.name} does not load: {error}") from error
    # This torch keeps its OpenMP runtime to itself: make that very copy visible, or else the system's.
    try:
        ctypes.CDLL(next(iter(loaded_openmp_runtimes()), "libgomp.so.1"), mode=ctypes.RTLD_GLOBAL)
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(f"{path.name} finds no OpenMP runtime: {error}") from error


def loaded_openmp_runtimes() -> list[str]:
    """Paths of the GNU OpenMP runtimes mapped into this process, in no particular order."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return sorted({line.split()[-1] for line in maps.splitlines() if "libgomp" in line})
