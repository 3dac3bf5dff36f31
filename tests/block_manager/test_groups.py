"""Layer groups: which layers share a table, how many pages a block takes, which blocks a window still needs."""

from __future__ import annotations

import pytest

from block_manager.groups import LayerGroup, layers_per_page, plan_groups

GEMMA3_270M = [None if (layer + 1) % 6 == 0 else 512 for layer in range(18)]


def windowed(window: int | None) -> LayerGroup:
    return LayerGroup("g", window, (0,), 1)


def test_gemma3_270m_has_one_full_page_and_five_sliding_pages_a_block() -> None:
    full, sliding = plan_groups(GEMMA3_270M)
    assert full == LayerGroup("full", None, (5, 11, 17), 1)
    assert sliding == LayerGroup("sliding_512", 512, tuple(i for i in range(18) if i not in (5, 11, 17)), 5)
    assert layers_per_page((full, sliding)) == 3


def test_equal_layers_are_one_group_with_one_page_a_block() -> None:
    assert plan_groups([None] * 7) == (LayerGroup("full", None, tuple(range(7)), 1),)
    assert plan_groups([64] * 4) == (LayerGroup("sliding_64", 64, (0, 1, 2, 3), 1),)


def test_groups_without_a_common_divisor_share_pages_of_one_layer() -> None:
    groups = plan_groups([None, 8, 8, None, 8])
    assert [group.pages_per_block for group in groups] == [2, 3]
    assert layers_per_page(groups) == 1


def test_several_windows_make_several_groups_the_full_one_first() -> None:
    groups = plan_groups([128, 64, None, 64])
    assert [(group.window, group.layers, group.pages_per_block) for group in groups] == [
        (None, (2,), 1),
        (64, (1, 3), 2),
        (128, (0,), 1),
    ]


def test_every_layer_is_in_exactly_one_group() -> None:
    layers = [layer for group in plan_groups([7, None, 9, 7, 7, None]) for layer in group.layers]
    assert sorted(layers) == [0, 1, 2, 3, 4, 5]


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(ValueError, match="without layers"):
        plan_groups([])


@pytest.mark.parametrize("window", [1, 2, 15, 16, 17, 31, 32, 33, 512, None])
def test_the_first_needed_block_holds_the_oldest_visible_position(window: int | None) -> None:
    for position in range(0, 700):
        oldest = 0 if window is None else max(0, position - window + 1)
        assert windowed(window).first_needed_block(position, 16) == oldest // 16


@pytest.mark.parametrize("window", [1, 2, 3, 4, 5, 8, 9, None])
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 11])
def test_most_blocks_at_once_is_exact_over_all_ways_to_cut_the_chunks(window: int | None, chunk: int) -> None:
    """Brute force: the worst step a .. b of any length up to ``chunk``, block size 4."""
    group = windowed(window)
    for num_tokens in range(1, 30):
        worst = max(
            -(-b // 4) - group.first_needed_block(a, 4)
            for a in range(num_tokens)
            for b in range(a + 1, min(a + chunk, num_tokens) + 1)
        )
        assert group.max_blocks(num_tokens, chunk, 4) == worst
