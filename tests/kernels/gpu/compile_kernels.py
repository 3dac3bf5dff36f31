"""Compile kernels for GPUs that need not be there, and print what they cost as JSON lines.

A program, not a test: ``test_compile.py`` runs it in a process without ``TRITON_INTERPRET``. Each argument names one of
the modules' ``variants()`` and an architecture; each line is a ``Cost``.

    python tests/kernels/gpu/compile_kernels.py decode:128:g4:bfloat16/bfloat16:plain@sm_90
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu import cascade, decode, prefill, reduce, store_kv
from kernels.gpu.variant import Variant

VARIANTS = {
    variant.name: variant for module in (store_kv, decode, reduce, prefill, cascade) for variant in module.variants()
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a compiled kernel takes of a multiprocessor. Bytes, except registers per thread."""

    name: str
    shared: int
    registers: int
    spilled: int
    instructions: str


def compile_variant(name: str, variant: Variant, architecture: str) -> Cost:
    is_cuda = architecture.startswith("sm_")
    target = GPUTarget("cuda", int(architecture[3:]), 32) if is_cuda else GPUTarget("hip", architecture, 64)
    source = ASTSource(
        fn=variant.kernel, signature=variant.signature, constexprs=variant.constexprs, attrs=variant.attributes
    )
    compiled = triton.compile(source, target=target, options=variant.options_on(target.backend))
    if not is_cuda:
        text = compiled.asm["amdgcn"]
        spills = re.search(r"\.vgpr_spill_count:\s*(\d+)", text)
        registers = re.search(r"\.vgpr_count:\s*(\d+)", text)
        assert spills is not None
        assert registers is not None
        matrix = "mfma" if "v_mfma" in text else ""
        return Cost(name, compiled.metadata.shared, int(registers[1]), int(spills[1]), matrix)
    ptx = compiled.asm["ptx"]
    registers, spilled = assemble(ptx, architecture)
    matrix = "wgmma" if "wgmma.mma_async" in ptx else "mma" if "mma.sync" in ptx else ""
    copies = "cp.async" if re.search(r"cp\.async\.c[ag]\.shared\.global \[[^]]*\], \[[^]]*\], 0x10", ptx) else ""
    return Cost(name, compiled.metadata.shared, registers, spilled, f"{matrix} {copies}".strip())


def assemble(ptx: str, architecture: str) -> tuple[int, int]:
    """Registers per thread and bytes spilled, as ptxas reports them."""
    from triton.backends.nvidia.compiler import get_ptxas

    suffix = "a" if architecture == "sm_90" else ""
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        ptxas = get_ptxas(int(architecture[3:])).path
        command = [ptxas, "-v", f"--gpu-name={architecture}{suffix}", file.name, "-o", "/dev/null"]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    assert registers is not None
    assert spills is not None
    return int(registers[1]), int(spills[1]) + int(spills[2])


if __name__ == "__main__":
    for requested in sys.argv[1:]:
        name, architecture = requested.split("@")
        print(json.dumps(asdict(compile_variant(requested, VARIANTS[name], architecture))), flush=True)
