"""The sums behind the table, on a model that needs no weights: what follows a token depends on that token alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from benchmarks import perplexity
from benchmarks.perplexity import CHUNK, PagedReader, Score, Variant, dtype_of, score, table
from kernels.attention import PagedLayer

VOCAB = 50
CPU = torch.device("cpu")


class BigramModel:
    """Keeps what it was given to read, and with which pages."""

    def __init__(self) -> None:
        layers = [SimpleNamespace(window=window) for window in (32, 32, None)]
        self.spec = SimpleNamespace(layers=layers, num_layers=3, num_kv_heads=2, head_dim=8)
        self.logits = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(0))
        self.positions: list[int] = []
        self.page_dtypes: set[torch.dtype] = set()

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, layers: Sequence[PagedLayer], rows: torch.Tensor
    ) -> torch.Tensor:
        self.positions += positions.tolist()
        self.page_dtypes |= {paged.pages.key.dtype for paged in layers}
        for paged in layers:
            assert paged.metadata.seq_lens.tolist() == [int(positions[-1]) + 1]
            assert paged.metadata.slot_mapping.shape == token_ids.shape
            assert (paged.metadata.slot_mapping >= 16).all()  # no token is stored in the null page
        return self.logits[token_ids][rows]


@pytest.mark.parametrize("bos", [None, 3])
@pytest.mark.parametrize("num_tokens", [2, CHUNK, CHUNK + 1, 300])
def test_every_token_is_predicted_once_from_the_one_before_it(num_tokens: int, bos: int | None) -> None:
    context = 100
    text = torch.randint(VOCAB, (num_tokens,), generator=torch.Generator().manual_seed(1)).tolist()
    model = BigramModel()
    [result] = score([PagedReader(model, torch.float32, context, CPU)], text, bos, context)

    size = context + 1 if bos is None else context
    windows = [([] if bos is None else [bos]) + text[at : at + size] for at in range(0, num_tokens, size)]
    pairs = [pair for window in windows for pair in pairwise(window)]
    log_p = model.logits.double().log_softmax(-1)
    loss = -sum(log_p[before, after].item() for before, after in pairs)
    assert result.tokens == len(pairs)
    assert len(pairs) == num_tokens - (0 if bos is not None else len(windows))
    assert result.perplexity == pytest.approx(math.exp(loss / len(pairs)), rel=1e-6)
    assert model.positions == [position for window in windows for position in range(len(window) - 1)]


def test_each_reader_has_pages_of_its_own_dtype_and_all_are_compared_with_the_first() -> None:
    models = [BigramModel(), BigramModel(), BigramModel()]
    models[2].logits = models[2].logits * 1.1
    dtypes = [torch.float32, torch.int8, torch.float8_e4m3fn]
    readers = [PagedReader(model, dtype, 64, CPU) for model, dtype in zip(models, dtypes, strict=True)]
    text = [token % VOCAB for token in range(200)]
    exact, same, other = score(readers, text, 0, 64)

    assert [model.page_dtypes for model in models] == [{dtype} for dtype in dtypes]
    assert [reader.bytes_per_token for reader in readers] == [3 * 2 * 2 * size for size in (32, 12, 12)]
    assert (exact.divergence, exact.agreements) == (0.0, exact.tokens)
    assert (same.loss, same.divergence, same.agreements) == (exact.loss, 0.0, exact.tokens)
    p, q = (model.logits.double().log_softmax(-1) for model in (models[0], models[2]))
    befores = [token for at in range(0, 200, 64) for token in [0, *text[at : at + 63]][: 200 - at]]
    expected = sum((p[before].exp() * (p[before] - q[before])).sum().item() for before in befores)
    assert other.divergence == pytest.approx(expected, rel=1e-4)
    assert other.agreements == exact.tokens


def test_the_table_says_what_each_form_and_dtype_takes_and_costs() -> None:
    variants = [Variant("none", 1_743_000_000, "float32", 36_864), Variant("int8", 285_000_000, "int8", 9_360)]
    scores = [Score(200.0, 0.0, 100, 100), Score(201.0, 2.5, 99, 100)]
    *_, first, second = table(variants, scores).splitlines()
    assert first == "| none | 1,743 | float32 | 36,864 | 7.3891 | +0.000% | 0.00e+00 | 100.00% |"
    assert second == "| int8 | 285 | int8 | 9,360 | 7.4633 | +1.005% | 2.50e-02 | 99.00% |"


def test_one_command_reads_every_form_over_every_dtype_and_writes_it_down(
    tiny_gemma3_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, page = tmp_path / "text.txt", tmp_path / "page.md"
    text.write_text("in the beginning there was a page, and the page was free " * 3)
    page.write_text("# Quality\n<!-- quality: begin --><!-- quality: end -->")
    forms = ["--quantization", "none,int8", "--kv-cache-dtype", "float32,fp8", "--every-pair"]
    shape = ["--text", str(text), "--context", "64", "--max-tokens", "90", "--write", str(page)]
    assert perplexity.main([str(tiny_gemma3_dir), *forms, *shape]) == 0
    assert capsys.readouterr().out.strip() in page.read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.read_text().splitlines() if "%" in line]
    pairs = [(row[0], row[2]) for row in rows]
    assert pairs == [("none", "float32"), ("none", "fp8_e4m3"), ("int8", "float32"), ("int8", "fp8_e4m3")]
    assert rows[0][5:] == ["+0.000%", "0.00e+00", "100.00%"]
    assert all(float(row[6]) > 0 for row in rows[1:])


def test_unless_every_pair_is_asked_for_forms_and_dtypes_are_each_held_against_the_first(
    tiny_gemma3_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("in the beginning there was a page, and the page was free")
    forms = ["--quantization", "none,bfloat16,int8", "--kv-cache-dtype", "float32,fp8", "--text", str(text)]
    assert perplexity.main([str(tiny_gemma3_dir), *forms, "--context", "64"]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    found = {(row[0], row[2]): row for row in rows if len(row) == 8 and "%" in row[-1]}
    assert list(found) == [("none", "float32"), ("none", "fp8_e4m3"), ("bfloat16", "float32"), ("int8", "float32")]
    assert int(found["bfloat16", "float32"][1]) <= int(found["none", "float32"][1])
    assert 0 < float(found["bfloat16", "float32"][6]) < 1e-2


def test_without_a_text_it_reads_the_one_that_comes_with_it() -> None:
    text = perplexity.TEXT.read_text(encoding="utf-8")
    assert text.startswith("ABASEMENT, n.  A decent and customary mental attitude")
    assert len(text) == 80_675


def test_a_text_that_cannot_be_read_is_wrong_usage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        perplexity.main(["--text", str(tmp_path / "none.txt")])
    assert exit_.value.code == 2
    assert "none.txt: [Errno 2]" in capsys.readouterr().err


def test_dtypes_have_the_names_of_the_flag() -> None:
    assert dtype_of("fp8") == ("fp8_e4m3", torch.float8_e4m3fn)
    assert dtype_of("int8") == ("int8", torch.int8)
    for name in ("auto", "int4"):
        with pytest.raises(ValueError, match=f"{name}: choose from float32, bfloat16, float16, int8, fp8_e4m3"):
            dtype_of(name)


def test_a_dtype_that_is_none_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        perplexity.main(["--kv-cache-dtype", "float32,int3"])
    assert exit_.value.code == 2
    assert "--kv-cache-dtype int3: choose from float32" in capsys.readouterr().err
