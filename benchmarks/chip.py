"""What one multiprocessor of a GPU holds, and how many programs of a kernel fit in it at once.

Knows no kernels and needs no device. Sources: the tables of compute capabilities in the CUDA C++ Programming Guide
(technical specifications per compute capability) and, for CDNA 3, its instruction set guide and LLVM's AMDGPU backend
guide (512 registers a lane and SIMD, at most 8 waves a SIMD, 64 KiB of LDS).
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Limits of one multiprocessor. Registers are 32 bits wide, shared memory is in bytes.

    ``registers`` are those of a whole multiprocessor on CUDA and of one lane of a SIMD on HIP; ``register_unit`` is
    what a thread's are rounded up to. ``smallest_shared`` is what a program has on the smallest card that runs the same
    code. ``shared_reserved`` bytes go to the system for every program. ``partitions`` are
    the schedulers that warps are spread over.
    """

    name: str
    backend: str
    architecture: int | str
    warp_size: int
    registers: int
    register_unit: int
    max_warps: int
    max_programs: int
    partitions: int
    shared_per_program: int
    smallest_shared: int
    shared: int
    shared_reserved: int
    has_fp8: bool

    def occupancy(self, *, registers: int, shared: int, num_warps: int) -> float:
        """Warps resident at once over the most there can be, 0 to 1; 0 where not even one program fits."""
        by_shared = self.max_programs
        if shared > self.shared_per_program:
            return 0.0
        if shared > 0:
            by_shared = self.shared // (shared + self.shared_reserved)
        per_thread = -(-max(registers, 1) // self.register_unit) * self.register_unit
        lanes = self.warp_size if self.backend == "cuda" else 1
        warps_each = self.registers // lanes // per_thread
        if self.backend == "cuda":
            warps_each //= self.partitions
        warps_each = min(warps_each, self.max_warps // self.partitions)
        by_registers = warps_each * self.partitions // num_warps
        programs = min(by_shared, by_registers, self.max_programs, self.max_warps // num_warps)
        return programs * num_warps / self.max_warps


CHIPS = {
    chip.name: chip
    for chip in (
        Chip(
            name="sm_80",
            backend="cuda",
            architecture=80,
            warp_size=32,
            registers=65536,
            register_unit=8,
            max_warps=64,
            max_programs=32,
            partitions=4,
            shared_per_program=163 * KIB,
            smallest_shared=99 * KIB,  # sm_86 and sm_89
            shared=164 * KIB,
            shared_reserved=KIB,
            has_fp8=False,
        ),
        Chip(
            name="sm_90",
            backend="cuda",
            architecture=90,
            warp_size=32,
            registers=65536,
            register_unit=8,
            max_warps=64,
            max_programs=32,
            partitions=4,
            shared_per_program=227 * KIB,
            smallest_shared=227 * KIB,
            shared=228 * KIB,
            shared_reserved=KIB,
            has_fp8=True,
        ),
        Chip(
            name="gfx942",
            backend="hip",
            architecture="gfx942",
            warp_size=64,
            registers=512,
            register_unit=8,
            max_warps=32,
            max_programs=32,
            partitions=4,
            shared_per_program=64 * KIB,
            smallest_shared=64 * KIB,
            shared=64 * KIB,
            shared_reserved=0,
            has_fp8=False,
        ),
    )
}
