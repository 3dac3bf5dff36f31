"""One way to compile a kernel: what a launch would hand to Triton, written down without tensors and without a device.

Every kernel module lists the variants that a runner can launch in ``variants()``, so that they can be compiled for GPUs
that are not there. Knows Triton's types, not what the kernels do with them.

    signature    Triton type of each argument, in the kernel's order: "*bf16", "i32", "fp32", ...; "constexpr"
    constexprs   value of each argument whose type is "constexpr"; a pointer that is left out is a constexpr of None

Pointers and integers are multiples of 16, as the addresses and strides of a real pool are, but for the arguments that
the kernel does not specialize on; so a launch compiles to the same code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

TRITON_TYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float8_e4m3fn: "fp8e4nv",
}


# AMD's warps have 64 lanes: with 8 of them a lane has but 256 registers, and large tiles spill; with 4 it has 512.
MOST_HIP_WARPS = 4


def warps_on(backend: str, num_warps: int) -> int:
    """Warps to a program on "cuda" or "hip", where ``num_warps`` are right for the former."""
    return min(num_warps, MOST_HIP_WARPS) if backend == "hip" else num_warps


def warps_here(num_warps: int) -> int:
    """Warps to a program on the kind of GPU that this torch is built for."""
    return warps_on("cuda" if torch.version.hip is None else "hip", num_warps)


def pointer(dtype: torch.dtype) -> str:
    """Triton's type of a pointer to ``dtype``."""
    return f"*{TRITON_TYPES[dtype]}"


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel with the types of its arguments, its constants and its launch options. ``name`` is unique per module.

    ``fuses``: whether products and sums may fuse, which they may not where bits must not depend on a batch.
    """

    name: str
    kernel: Any
    signature: dict[str, str]
    constexprs: dict[str, Any]
    num_warps: int = 4
    num_stages: int = 3
    fuses: bool = True

    @classmethod
    def of(
        cls,
        name: str,
        kernel: Any,
        types: Mapping[str, str | None],
        constexprs: Mapping[str, Any],
        *,
        num_warps: int = 4,
        num_stages: int = 3,
        fuses: bool = True,
    ) -> Variant:
        """The variant whose arguments have ``types``: None for a pointer left out, nothing for an int32.

        Raises ValueError for an argument that the kernel does not have, and for a pointer or constant left open.
        """
        unknown = (types.keys() | constexprs.keys()) - set(kernel.arg_names)
        constants = {arg for arg, kind in kernel.fn.__annotations__.items() if "constexpr" in str(kind)}
        pointers = {arg for arg in kernel.arg_names if arg.endswith("_ptr")}
        unnamed = (constants - constexprs.keys()) | (pointers - constexprs.keys() - types.keys())
        if unknown or unnamed:
            raise ValueError(f"{name}: no arguments {sorted(unknown)}; nothing given for {sorted(unnamed)}")
        constexprs = {**constexprs, **{argument: None for argument, kind in types.items() if kind is None}}
        signature = {
            argument: "constexpr" if argument in constexprs else types.get(argument) or "i32"
            for argument in kernel.arg_names
        }
        return cls(name, kernel, signature, constexprs, num_warps, num_stages, fuses)

    @property
    def attributes(self) -> dict[tuple[int], list[list[Any]]]:
        """``attrs`` of ``triton.compiler.ASTSource``: the arguments that are multiples of 16."""
        return {
            (parameter.num,): [["tt.divisibility", 16]]
            for parameter in self.kernel.params
            if self.signature[parameter.name] not in ("constexpr", "fp32") and not parameter.do_not_specialize
        }

    @property
    def options(self) -> dict[str, Any]:
        """``options`` of ``triton.compile`` for NVIDIA GPUs, as every launch here gives them."""
        return self.options_on("cuda")

    def options_on(self, backend: str) -> dict[str, Any]:
        """``options`` of ``triton.compile`` for "cuda" or "hip"."""
        num_warps = warps_on(backend, self.num_warps)
        return {"num_warps": num_warps, "num_stages": self.num_stages, "enable_fp_fusion": self.fuses}

    @property
    def needs_fp8(self) -> bool:
        """Whether the GPU needs fp8 (e4m3): compute capability 8.9 or later."""
        return any("fp8" in kind for kind in self.signature.values())
