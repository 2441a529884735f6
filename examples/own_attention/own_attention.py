"""Attention by distance: the weights are a Gaussian kernel of query and key (Tsai et al. 2019, arXiv:1908.11775)."""

from torch import Tensor


def distance(queries: Tensor, keys: Tensor) -> Tensor:
    """Return -|q - k|^2 / (2 sqrt(D)) of all pairs, (sentences, heads, queries, keys), without the term |q|^2, which is
    the same for all keys and vanishes in the softmax.

    queries: (sentences, heads, queries, D). keys: (sentences, heads, keys, D).
    """
    products = queries @ keys.transpose(-1, -2)
    half_squares = keys.square().sum(-1)[:, :, None] / 2
    return (products - half_squares) / queries.shape[-1] ** 0.5
