"""Compression keeps what it promises: counts, means, order, determinism; INT8 keeps values near."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_visual import IMAGE, prompt, tiny_vlm

from mmspec_agent.core.cache import KVRows
from mmspec_agent.core.hf_target import HFTarget
from mmspec_agent.core.visual.compress import compress, compressed, layout, mixture, saliency, target_count
from mmspec_agent.core.visual.families import Family
from mmspec_agent.core.visual.features import Encoder, PictureFeatures
from mmspec_agent.core.visual.memory import ByteStore
from mmspec_agent.core.visual.placing import place, visual_inputs
from mmspec_agent.core.visual.quantize import Int8Rows, Int8Tensor


def rows(count: int, width: int = 12, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 4, 35, 144, 576])
@pytest.mark.parametrize("keep", [1, 3, 16, 38, 64, 0.25, 0.5, 10_000])
def test_any_ratio_gives_the_promised_number_of_means(count: int, keep: int | float) -> None:
    wanted = target_count(count, keep)
    found = mixture(rows(count), wanted, layout(count, None))
    assert found.weights.shape == (wanted, count)
    torch.testing.assert_close(found.weights.sum(dim=1), torch.ones(wanted))
    assert bool((found.weights >= 0).all())
    assert torch.equal(found.weights, mixture(rows(count), wanted, layout(count, None)).weights)


def test_what_stands_out_is_salient_and_kept() -> None:
    values = torch.ones(144, 12) + 0.01 * rows(144)
    values[50] = -3 * torch.ones(12)
    assert int(saliency(values, (12, 12)).argmax()) == 50
    weights = mixture(values, 38, (12, 12)).weights
    assert bool((weights[:, 50] == 1).any()), "the most salient token stays as it is"


def test_order_follows_the_picture() -> None:
    places = mixture(rows(144), 48, (12, 12)).places
    bands = (places[:, 0] * 8 / 12).long()
    assert bool((bands.diff() >= 0).all())


def test_deepstack_rows_are_mixed_alike() -> None:
    features = PictureFeatures(rows(36), (rows(36),))
    small = compress(features, 9, (6, 6))
    torch.testing.assert_close(small.rows, small.deep[0])


def test_compressed_pictures_keep_their_extent_under_m_rope() -> None:
    model = tiny_vlm("qwen3_vl")
    family = Family.of(model)
    assert family is not None
    encoder = Encoder(model, family, ByteStore(1 << 20))
    asked = prompt("qwen3_vl", 1, 0)
    picture = family.split(asked.inputs)[0]
    small = compressed(picture, 3, encoder.encode)
    ids = [5, 6, IMAGE, IMAGE, IMAGE, 7, 8]
    sequence = HFTarget(model).open(16)
    visual = visual_inputs(family, ids, place(ids, IMAGE, [small]), 0, 7, sequence.positions, encoder.encode)
    assert visual.positions is not None
    assert visual.positions[:, 5:].tolist() == [[2 + max(picture.grid or (0,)) + i for i in range(2)]] * 3
    sequence.prefill(ids, visual)
    assert bool(torch.isfinite(sequence.verify([9]).row(-1)).all())


def test_int8_is_per_channel_and_near() -> None:
    values = rows(40, 64)[None, None] * torch.logspace(-3, 3, 64)
    stored = Int8Tensor.of(values)
    restored = stored.restore()
    step = (values.amax(dim=2) - values.amin(dim=2)) / 255
    assert bool(((restored - values).abs() <= step[:, :, None] * 0.51).all())
    assert stored.nbytes < values.nbytes / 3
    constant = torch.full((1, 1, 5, 4), 2.5)
    torch.testing.assert_close(Int8Tensor.of(constant).restore(), constant)


def test_int8_rows_go_through() -> None:
    kept = KVRows(((rows(6)[None, None].bfloat16(), rows(6, seed=1)[None, None].bfloat16()),))
    again = Int8Rows.of(kept).restore()
    assert again.length == kept.length
    assert again.layers[0][0].dtype == torch.bfloat16
    assert np.allclose(again.layers[0][1].float(), kept.layers[0][1].float(), atol=0.03)
