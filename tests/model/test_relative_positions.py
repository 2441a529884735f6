"""Relative positions have the buckets of T5."""

import pytest
import torch

from seq2seq.model.relative_positions import buckets


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_are_those_of_transformers(causal):
    attention = pytest.importorskip("transformers.models.t5.modeling_t5").T5Attention
    distance = torch.arange(-300, 301)
    expected = attention._relative_position_bucket(distance, bidirectional=not causal)
    assert torch.equal(buckets(distance, causal), expected)


def test_near_distances_have_a_bucket_of_their_own_and_far_ones_share_the_last():
    # Raffel et al. 2020, section 2.1: 32 buckets, which grow up to a distance of 128.
    assert buckets(torch.arange(0, -16, -1), causal=True).tolist() == list(range(16))
    assert buckets(torch.tensor([-128, -129, -1000]), causal=True).tolist() == [31] * 3
    assert buckets(torch.tensor([-7, 7, 0]), causal=False).tolist() == [7, 16 + 7, 0]
    assert buckets(torch.tensor([-500, 500]), causal=False).tolist() == [15, 31]
