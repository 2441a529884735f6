"""Bitwise comparison of tensors, which also distinguishes 0.0 from -0.0 and compares NaNs."""

import torch


def assert_same_bits(found, expected):
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape), name
        bits = [value.contiguous().flatten().view(torch.uint8).tolist() for value in (found[name], tensor)]
        assert bits[0] == bits[1], name
