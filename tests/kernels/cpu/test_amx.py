"""Products by AMX have the bits of those by vectors: the kernel itself, over tiles in software (``tile_model.h``)."""

from __future__ import annotations

import ctypes
import itertools
import platform
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

from kernels import backends
from kernels.cpu.library import LibraryError, NativeLibrary, TileSupport, Variant
from kernels.cpu.quantised_matrix import QuantisedMatrix, QuantisedProduct, WeightKind

HERE = Path(__file__).parent
SOURCES = Path(backends.__file__).with_name("cpu")
OUTPUTS = 50  # three panels and a part of one
FLOATS = (WeightKind.FP8, WeightKind.FP8_WIDE)  # whose products are no whole numbers
BEYOND_ONE_TILE = 9  # rows
FLAGS: dict[Variant, list[str]] = {Variant.PORTABLE: []}
FLAGS[Variant.AVX2] = ["-mavx2", "-mfma", "-mf16c"]
FLAGS[Variant.AVX512] = [*FLAGS[Variant.AVX2], "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
FLAGS[Variant.AVX512_VNNI] = [*FLAGS[Variant.AVX512], "-mavx512vnni"]
FLAGS[Variant.AVX512_BF16] = [*FLAGS[Variant.AVX512_VNNI], "-mavx512bf16", "-mavx512vbmi"]

pytestmark = pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="AMX is of x86")


@pytest.fixture(scope="module")
def vectors() -> NativeLibrary:
    """The best build of this machine but AMX."""
    best = NativeLibrary().variant
    return NativeLibrary(variant=min(best, Variant.AVX512_BF16))


@pytest.fixture(scope="module")
def tiles(vectors: NativeLibrary, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel over tiles in software, compiled for the same vectors."""
    compiler = shlex.split(sysconfig.get_config_var("CXX") or "g++")[0]
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    folder = tmp_path_factory.mktemp("tiles")
    options = ["-std=c++17", "-O1", "-fPIC", "-pthread", "-fvisibility=hidden", "-ffp-contract=off", "-w"]
    options += ["-fno-math-errno", "-DOCTAVO_X86", "-DOCTAVO_AMX", f"-I{SOURCES}"]
    flags = {HERE / "tiled_product.cpp": FLAGS[vectors.variant], SOURCES / "amx.cpp": [], SOURCES / "team.cpp": []}
    objects = [folder / f"{source.stem}.o" for source in flags]
    compilers = [
        subprocess.Popen([compiler, *options, *own, "-c", source, "-o", made])
        for (source, own), made in zip(flags.items(), objects, strict=True)
    ]
    assert [one.wait() for one in compilers] == [0] * len(compilers)
    subprocess.run([compiler, "-shared", "-pthread", *objects, "-o", folder / "libtiles.so"], check=True)
    return ctypes.CDLL(str(folder / "libtiles.so"))


def drawn(tiles: ctypes.CDLL, vectors: NativeLibrary, kind: WeightKind, columns: int) -> QuantisedProduct:
    matrix = QuantisedMatrix(vectors, kind, OUTPUTS, columns)
    tiles.draw_panels(ctypes.byref(matrix.description), ctypes.c_int64(columns), kind)
    return QuantisedProduct([matrix])


def multiply(tiles: ctypes.CDLL, product: QuantisedProduct, x: torch.Tensor, num_threads: int = 1) -> torch.Tensor:
    call, _held = product._call(x, 0, None, 0.0)
    output = torch.empty(len(x), OUTPUTS)
    call.output, call.output_stride = output.data_ptr(), OUTPUTS
    tiles.tiled_product(ctypes.byref(call), num_threads)
    return output


@pytest.mark.parametrize("kind", [kind for kind in WeightKind if kind not in FLOATS], ids=lambda kind: kind.name)
@pytest.mark.parametrize("size", ["few columns", "several runs of groups"])
def test_products_by_tiles_have_the_bits_of_those_by_vectors(
    tiles: ctypes.CDLL, vectors: NativeLibrary, kind: WeightKind, size: str
) -> None:
    is_small = size == "few columns"
    unit = next(unit for unit in (32, 128, 256) if vectors.handle.octavo_packed_bytes(kind, 1, unit) > 0)
    columns = 3 * unit if is_small else 17 * 256
    product = drawn(tiles, vectors, kind, columns)
    x = torch.randn(70, columns, generator=torch.Generator().manual_seed(kind))
    threads = itertools.cycle((1, 2, 3))
    for num_rows in range(1, 71) if is_small else (9, 16, 21, 31, 70):
        expected = product.multiply(x[:num_rows])
        assert expected.isfinite().all()
        actual = multiply(tiles, product, x[:num_rows], next(threads))
        assert torch.equal(actual.view(torch.int32), expected.view(torch.int32)), num_rows
        panels = -(-OUTPUTS // 16)
        assert tiles.take_panels_for_vectors() == (0 if num_rows >= BEYOND_ONE_TILE else panels)
    assert tiles.take_tile_faults() == 0


@pytest.mark.parametrize("kind", FLOATS, ids=lambda kind: kind.name)
def test_weights_that_are_floats_are_left_to_vectors(
    tiles: ctypes.CDLL, vectors: NativeLibrary, kind: WeightKind
) -> None:
    multiply(tiles, drawn(tiles, vectors, kind, 128), torch.randn(40, 128))
    assert tiles.take_panels_for_vectors() == 4


def test_tiles_are_released_after_a_call_and_by_the_check(tiles: ctypes.CDLL, vectors: NativeLibrary) -> None:
    multiply(tiles, drawn(tiles, vectors, WeightKind.Q8_0, 64), torch.randn(16, 64))
    assert not tiles.are_tiles_configured()
    tiles.tiles_agree_when_off_by(0)
    assert not tiles.are_tiles_configured()


@pytest.mark.parametrize("error", [0, 1, -4])
def test_the_check_at_the_start_finds_tiles_that_are_wrong(tiles: ctypes.CDLL, error: int) -> None:
    assert tiles.tiles_agree_when_off_by(error) == (error == 0)
    assert tiles.take_tile_faults() == 0


def test_amx_is_chosen_where_it_works_and_refused_elsewhere() -> None:
    best = NativeLibrary()
    if best.tile_support is TileSupport.WORKS:
        assert best.variant is Variant.AMX
        return
    assert best.variant < Variant.AMX
    with pytest.raises(LibraryError, match="this machine cannot run the AMX build"):
        NativeLibrary(variant=Variant.AMX)


@pytest.mark.parametrize(
    ("support", "reason"),
    [
        (TileSupport.WORKS, None),
        (TileSupport.ABSENT, None),
        (TileSupport.NOT_GRANTED, "the system does not let this process use it"),
        (TileSupport.WRONG, "it fails its check against AVX-512"),
    ],
)
def test_a_user_hears_in_one_line_why_amx_is_not_used(
    monkeypatch: pytest.MonkeyPatch, support: TileSupport, reason: str | None
) -> None:
    monkeypatch.setattr(NativeLibrary, "tile_support", support)
    warnings = backends.choose_backend(torch.device("cpu"))[1]
    assert len(warnings) == (reason is not None)
    assert all(reason in one and "\n" not in one for one in warnings)
