"""What a kernel costs a multiprocessor, learned by compiling it for a GPU that need not be there.

Compiles one ``kernels.gpu.variant.Variant`` for one ``Chip`` and reads registers, spills, shared memory, matrix
instructions and the widest loads off what the compiler leaves. Triton keeps what it has compiled in its own cache, so a
second time takes milliseconds. Needs Triton outside its interpreter, and imports it only when it compiles.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

from benchmarks.chip import Chip
from kernels import gpu
from kernels.gpu.variant import Variant

WIDE_LOAD = 16  # bytes: the most one thread loads at once


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """One variant on one chip.

    ``registers`` per thread, ``spilled`` and ``shared`` in bytes per thread and program, ``occupancy`` 0 to 1 in
    theory, ``matrix`` the matrix instruction or nothing, ``product_rows`` the rows of the largest tile of 16 or 8 bits
    that is multiplied, 0 where none is, ``load_bytes`` what the widest load of a thread fetches, ``async_bytes`` what
    it copies at most into shared memory while it goes on (on NVIDIA).
    """

    module: str
    variant: str
    chip: str
    registers: int
    spilled: int
    shared: int
    occupancy: float
    matrix: str
    product_rows: int
    load_bytes: int
    async_bytes: int


def variants_by_module() -> dict[str, dict[str, Variant]]:
    """All variants of all kernel modules, by module and name. ValueError where two of a module share a name."""
    found = {}
    for info in pkgutil.iter_modules(gpu.__path__):
        module = importlib.import_module(f"kernels.gpu.{info.name}")
        if not hasattr(module, "variants"):
            continue
        listed: list[Variant] = module.variants()
        found[info.name] = {variant.name: variant for variant in listed}
        if len(found[info.name]) != len(listed):
            raise ValueError(f"kernels.gpu.{info.name}: two variants have the same name")
    return found


def compile_variant(module: str, variant: Variant, chip: Chip) -> Compiled:
    """Compile ``variant`` for ``chip``. Errors are Triton's own."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    source = ASTSource(
        fn=variant.kernel, signature=variant.signature, constexprs=variant.constexprs, attrs=variant.attributes
    )
    target = GPUTarget(chip.backend, chip.architecture, chip.warp_size)
    kernel = triton.compile(source, target=target, options=variant.options_on(chip.backend))
    shared = int(kernel.metadata.shared)
    if chip.backend == "cuda":
        text = kernel.asm["ptx"]
        registers, spilled = cubin_resources(kernel.asm["cubin"])
        matrix, load_bytes, async_bytes = ptx_matrix(text), ptx_load_bytes(text), ptx_async_bytes(text)
    else:
        text = kernel.asm["amdgcn"]
        registers, spilled = amdgcn_resources(text)
        matrix, load_bytes, async_bytes = "mfma" if "v_mfma" in text else "", amdgcn_load_bytes(text), 0
    return Compiled(
        module=module,
        variant=variant.name,
        chip=chip.name,
        registers=registers,
        spilled=spilled,
        shared=shared,
        occupancy=chip.occupancy(registers=registers, shared=shared, num_warps=int(kernel.metadata.num_warps)),
        matrix=matrix,
        product_rows=narrow_product_rows(kernel.asm["ttir"]),
        load_bytes=load_bytes,
        async_bytes=async_bytes,
    )


def narrow_product_rows(ttir: str) -> int:
    """Rows of the largest product, in Triton's first form, of anything narrower than float32; 0 where there is none."""
    products = re.findall(r" tt\.dot .*: tensor<(\d+)x\d+x(\w+)> \* tensor<\d+x\d+x(\w+)>", ttir)
    return max((int(rows) for rows, *kinds in products if "f32" not in kinds), default=0)


def ptx_matrix(ptx: str) -> str:
    """The matrix instruction of Hopper or its older kind, or nothing."""
    return "wgmma" if "wgmma.mma_async" in ptx else "mma" if "mma.sync" in ptx else ""


def ptx_load_bytes(ptx: str) -> int:
    """Bytes of the widest load from global memory, into registers or straight into shared memory."""
    widths = [
        int(count or 1) * int(bits) // 8
        for count, bits in re.findall(r"ld\.global(?:\.(?!v\d|b\d)[\w:]+)*(?:\.v(\d))?\.b(\d+)", ptx)
    ]
    return max([*widths, ptx_async_bytes(ptx)], default=0)


def ptx_async_bytes(ptx: str) -> int:
    """Bytes of the widest copy straight into shared memory."""
    sizes = re.findall(r"cp\.async\.c[ag]\.shared\.global[^;]*?\], (0x[0-9a-f]+|\d+)", ptx)
    return max((int(size, 0) for size in sizes), default=0)


def amdgcn_load_bytes(text: str) -> int:
    """Bytes of the widest load from global memory."""
    widths = [4 * int(words or 1) for words in re.findall(r"(?:global|buffer)_load_(?:lds_)?dword(?:x(\d))?\b", text)]
    return max(widths, default=0)


def amdgcn_resources(text: str) -> tuple[int, int]:
    """Registers a lane, accumulators included, and bytes of private memory, which is where spills go."""
    registers = re.search(r"\.vgpr_count:\s*(\d+)", text)
    spilled = re.search(r"\.private_segment_fixed_size:\s*(\d+)", text)
    if registers is None or spilled is None:
        raise ValueError("the compiler's output names no registers")
    return int(registers[1]), int(spilled[1])


def cubin_resources(cubin: bytes) -> tuple[int, int]:
    """Registers a thread, and bytes of stack, which is where spills go."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [_cuobjdump(), "--dump-resource-usage", file.name]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    usage = re.search(r"REG:(\d+) STACK:(\d+)", report)
    if usage is None:
        raise ValueError(f"cuobjdump names no registers: {report[:200]}")
    return int(usage[1]), int(usage[2])


def _cuobjdump() -> str:
    from triton import knobs

    path: Any = knobs.nvidia.cuobjdump.path
    return str(path)
