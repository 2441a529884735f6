"""A softmax over keys that arrive in blocks: the numbers of attention so far, and those with one block more.

With the scores s so far, they are m = max s, l = sum 2^(s - m) and o = sum 2^(s - m) v. If a block raises the maximum
to m', l and o are multiplied by 2^(m - m') (Milakov and Gimelshein 2018, arXiv:1805.02867). Attention is o / l.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LOWEST = tl.constexpr(-1e30)                                                    # m without keys: below all scores


@triton.jit  # type: ignore[untyped-decorator]
def add_keys(q: tl.tensor, k: tl.tensor, v: tl.tensor, seen: tl.tensor, greatest: tl.tensor, total: tl.tensor,
             summed: tl.tensor, scale: tl.tensor) -> Any:
    """Return m, l and o with a block of keys and values, (keys, features).

    q: (queries, features). seen: which keys each query may attend to, (queries, keys). greatest, total: m and l,
    (queries,). summed: o, (queries, features). scale: factor of the scores, times log2(e).
    """
    score = tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, LOWEST)
    larger = tl.maximum(greatest, tl.max(score, 1))
    weight = tl.where(seen, tl.exp2(score - larger[:, None]), 0.0)
    shrink = tl.exp2(greatest - larger)
    summed = summed * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision="ieee")
    return larger, total * shrink + tl.sum(weight, 1), summed
