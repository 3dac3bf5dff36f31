"""Compile the attention kernels for GPUs that need not be there, and print what they cost as JSON lines.

A program, not a test: ``test_compile.py`` runs it in a process without ``TRITON_INTERPRET``. Each line is a ``Cost``.

    python tests/kernels/gpu/compile_kernels.py decode:128:bfloat16:sm_90:full prefill:128:bfloat16:sm_80:plain

``full`` has a window, a softcap, four query heads to a KV head and splits; ``plain`` has none of them. The dtype may
name that of the pages too: ``bfloat16/int8``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from kernels.gpu.decode import decode_kernel, decode_tile_shape
from kernels.gpu.prefill import prefill_kernel, prefill_tile_shape
from kernels.gpu.reduce import merge_splits_kernel
from kernels.gpu.splits import SplitLimits
from kernels.gpu.store_kv import BLOCK_TOKENS, store_kv_kernel
from kernels.gpu.tile import TileShape, padded_head_dim
from kernels.quantisation import LARGEST_CODE, is_quantised

NUM_KV_HEADS = 8
BLOCK_SIZE = 16
# Written every step by the runner, so their values must not choose a variant of the kernel.
UNSPECIALIZED = {"num_seqs", "num_tokens", "num_splits", "table_stride", "min_query_len"}
INT32_POINTERS = {"query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr"}
FLOAT32_POINTERS = {"partial_ptr", "partial_lse_ptr"}
PAGE_POINTERS = {"key_pages_ptr", "value_pages_ptr"}
SCALE_POINTERS = {"key_scales_ptr", "value_scales_ptr"}
TRITON_DTYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.int8: "i8",
    torch.float8_e4m3fn: "fp8e4nv",
}


@dataclass(frozen=True, slots=True)
class Cost:
    """What a compiled kernel takes of a multiprocessor. Bytes, except registers per thread."""

    name: str
    shared: int
    registers: int
    spilled: int
    instructions: str


def constants(
    kernel: str, head_dim: int, dtype: torch.dtype, pages_dtype: torch.dtype, variant: str
) -> tuple[Any, dict[str, Any], TileShape | None]:
    is_full = variant == "full"
    window, group = (1024, 4) if is_full else (0, 1)
    common = {"HEAD_DIM": head_dim, "HEAD_DIM_PADDED": padded_head_dim(head_dim)}
    limits = SplitLimits.of(NUM_KV_HEADS)
    division = {"MIN_TILES": limits.min_tiles, "MAX_SPLITS": limits.max_splits}
    quantised = {"QUANTISED": is_quantised(pages_dtype)}
    attention = (
        common | quantised | {"GROUP": group, "BLOCK_SIZE": BLOCK_SIZE, "WINDOW": window, "HAS_SOFTCAP": is_full}
    )
    if kernel == "store_kv":
        codes = {"LARGEST": LARGEST_CODE.get(pages_dtype, 0.0), "IS_INTEGER": pages_dtype == torch.int8}
        pages = {"BLOCK_SIZE": BLOCK_SIZE, "BLOCK_TOKENS": BLOCK_TOKENS}
        return store_kv_kernel, common | quantised | codes | pages, None
    if kernel == "reduce":
        return merge_splits_kernel, common | division | {"WINDOW": window, "TILE": 64}, TileShape(1, 64, 1, 2)
    if kernel == "decode":
        tile = decode_tile_shape(group, head_dim, dtype, pages_dtype)
        chosen = {"ROWS": tile.rows, "TILE": tile.keys, "IS_SPLIT": is_full}
        return decode_kernel, attention | division | chosen, tile
    tile = prefill_tile_shape(group, head_dim, dtype, pages_dtype)
    return prefill_kernel, attention | {"ROWS": tile.rows, "TILE": tile.keys}, tile


def signature(
    kernel: Any, constant: dict[str, Any], dtype: torch.dtype, pages_dtype: torch.dtype
) -> tuple[dict[str, str], dict[Any, Any]]:
    """Argument types, and which arguments are multiples of 16: pointers and strides, as in a real pool."""
    types: dict[str, str] = {}
    multiples: dict[Any, Any] = {}
    for index, name in enumerate(kernel.arg_names):
        if name in constant:
            types[name] = "constexpr"
            continue
        if name.endswith("_ptr"):
            types[name] = (
                "*i32" if name in INT32_POINTERS
                else "*i64" if name == "slot_mapping_ptr"
                else "*fp32" if name in FLOAT32_POINTERS
                else f"*{TRITON_DTYPES[pages_dtype]}" if name in PAGE_POINTERS
                else f"*{'fp32' if is_quantised(pages_dtype) else TRITON_DTYPES[dtype]}" if name in SCALE_POINTERS
                else f"*{TRITON_DTYPES[dtype]}"
            )  # fmt: skip
        else:
            types[name] = "fp32" if name in {"scale", "softcap_log2"} else "i32"
        if types[name] != "fp32" and name not in UNSPECIALIZED:
            multiples[(index,)] = [["tt.divisibility", 16]]
    return types, multiples


def compile_kernel(name: str) -> Cost:
    kernel_name, head_dim, dtype_name, architecture, variant = name.split(":")
    dtype, pages_dtype = (getattr(torch, part) for part in (dtype_name.split("/") * 2)[:2])
    kernel, constant, tile = constants(kernel_name, int(head_dim), dtype, pages_dtype, variant)
    types, multiples = signature(kernel, constant, dtype, pages_dtype)
    is_cuda = architecture.startswith("sm_")
    target = GPUTarget("cuda", int(architecture[3:]), 32) if is_cuda else GPUTarget("hip", architecture, 64)
    options = {"enable_fp_fusion": True}
    if tile is not None:
        options |= {"num_warps": tile.num_warps, "num_stages": tile.num_stages}
    source = ASTSource(fn=kernel, signature=types, constexprs=constant, attrs=multiples)
    compiled = triton.compile(source, target=target, options=options)
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
        print(json.dumps(asdict(compile_kernel(requested))), flush=True)
