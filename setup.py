"""Builds the one native part: a plain C++17 shared library with the CPU kernels. All metadata is in pyproject.toml.

The library has a C interface and is loaded with ctypes, so it needs neither torch's headers nor a Python ABI. Its
kernels are compiled once per instruction set; it picks one when it runs. Without a working compiler the install still
succeeds, and the CPU backend falls back to torch operations.
"""

from __future__ import annotations

import os
import platform
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

SOURCE = "kernels/cpu"
PLAIN = (
    "amx.cpp",
    "argmax.cpp",
    "attention.cpp",
    "dense_product.cpp",
    "logit_mask.cpp",
    "logprobs.cpp",
    "product.cpp",
    "replay.cpp",
    "rows.cpp",
    "sampling.cpp",
    "stored_rows.cpp",
    "team.cpp",
    "weight_layout.cpp",
)
PER_VARIANT = ("dense_kernel.cpp", "tile_kernel.cpp", "product_kernel.cpp", "row_kernel.cpp", "sampling_kernel.cpp")
OF_CODES = "product_kernel.cpp"
TABLES = ("dense", "kernels", "products", "rows", "sampling")  # of functions, one each of a variant
OF_TILES = "amx_product.cpp"  # compiled for the vectors beside AMX, where the assembler knows its instructions
HEADERS = (
    "affine_fit.h",
    "amx.h",
    "amx_product.h",
    "amx_tiles.h",
    "argmax.h",
    "code_numbers.h",
    "code_pairs.h",
    "code_quads.h",
    "code_word.h",
    "dense_floats.h",
    "dense_kernel.h",
    "dense_outputs.h",
    "dense_pairs.h",
    "dense_product.h",
    "dispatch.h",
    "float_row.h",
    "group_totals.h",
    "half.h",
    "input_row.h",
    "lines_ahead.h",
    "output_tile.h",
    "paged_attention.h",
    "panel.h",
    "panel_vectors.h",
    "panels.h",
    "plain_row.h",
    "prefetch.h",
    "quad_sums.h",
    "quantised_matrix.h",
    "ranking.h",
    "rows.h",
    "sampled_row.h",
    "sampling.h",
    "sampling_sketch.h",
    "scratch.h",
    "simd.h",
    "stored_rows.h",
    "team.h",
    "tile.h",
    "tile_blocks.h",
    "tile_bf16.h",
    "tile_codes.h",
    "tile_rows.h",
    "weight_kind.h",
    "weight_layout.h",
    "wide_vector.h",
)
FLAGS = ["-std=c++17", "-O3", "-g0", "-fopenmp", "-pthread", "-Wall"]
FLAGS += ["-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off"]
VARIANTS = {"portable": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    FLAGS.append("-DOCTAVO_X86")
    VARIANTS["avx2"] = ["-mavx2", "-mfma", "-mf16c"]
    VARIANTS["avx512"] = [*VARIANTS["avx2"], "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
    VARIANTS["avx512_vnni"] = [*VARIANTS["avx512"], "-mavx512vnni"]
    VARIANTS["avx512_bf16"] = [*VARIANTS["avx512_vnni"], "-mavx512bf16", "-mavx512vbmi"]


def sources_of(variant: str) -> tuple[str, ...]:
    """Those of `PER_VARIANT` that are compiled for the instruction set. VNNI is for products of codes alone."""
    if variant == "avx512_vnni":
        return (OF_CODES,)
    return tuple(one for one in PER_VARIANT if one != OF_CODES or variant != "avx512_bf16")


class BuildNativeLibrary(build_ext):
    """Compiles the kernels once per instruction set and links them into ``kernels/cpu/liboctavo_cpu.so``."""

    def get_ext_filename(self, fullname: str) -> str:
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext: Extension) -> None:
        target = self.get_ext_fullpath(ext.name)
        has_tiles = "avx512_bf16" in VARIANTS and self._assembles("tilerelease")
        define = ["-DOCTAVO_AMX"] if has_tiles else []
        jobs: list[tuple[str, str, list[str]]] = []
        for variant, flags in VARIANTS.items():
            names = [f"-DOCTAVO_{table.upper()}={table}_{variant}" for table in TABLES]
            jobs += [(source, variant, [*names, *flags]) for source in sources_of(variant)]
        if has_tiles:
            jobs.append((OF_TILES, "amx", VARIANTS["avx512_bf16"]))
        jobs += [(source, "dispatch", define) for source in PLAIN]  # the short ones last
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [made for objects in pool.map(lambda job: self._compile(*job), jobs) for made in objects]
        # Deliberately not linked to an OpenMP runtime: the one that torch has loaded must serve both.
        self.compiler.link_shared_object(objects, target, extra_postargs=["-Wl,-s", "-pthread"], target_lang="c++")

    def _assembles(self, instruction: str) -> bool:
        probe = Path(self.build_temp, "probe.cpp")
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(f'int main() {{ asm volatile("{instruction}"); }}\n')
        try:
            self.compiler.compile([str(probe)], output_dir=self.build_temp)
        except CompileError:
            print(f"the assembler does not know {instruction}: the CPU kernels are built without AMX")
            return False
        return True

    def _compile(self, source: str, variant: str, flags: list[str]) -> list[str]:
        # gcc 12 takes the undefined operands of its own AVX-512 intrinsics for uninitialised variables.
        options = [*FLAGS, "-Wno-uninitialized", "-Wno-maybe-uninitialized", "-Wno-psabi", *flags]
        folder = os.path.join(self.build_temp, variant)
        return self.compiler.compile([f"{SOURCE}/{source}"], output_dir=folder, extra_postargs=options)


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform only: the library is not a Python extension module."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


library = Extension(
    "kernels.cpu.liboctavo_cpu",
    sources=[f"{SOURCE}/{source}" for source in (*PLAIN, *PER_VARIANT, OF_TILES)],
    depends=[f"{SOURCE}/{header}" for header in HEADERS],
    optional=True,
)

setup(ext_modules=[library], cmdclass={"build_ext": BuildNativeLibrary, "bdist_wheel": PlatformWheel})
