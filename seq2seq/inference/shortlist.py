"""Shortlists of output words: for each source piece, the target pieces that may translate it.

L'Hostis et al. 2016 (arXiv:1610.00072) compare ways to select them. A search with a shortlist computes the scores of a
few hundred target pieces instead of the whole vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from seq2seq.errors import CheckpointError


@dataclass(frozen=True)
class Shortlist:
    """Target pieces of each source piece, in order of preference.

    A search with K pieces per source piece (`SearchOptions.shortlist`) considers the first K target pieces of each
    source piece of a sentence, and all target pieces of the `</s>` that closes the sentence. Every translation may end:
    `</s>` needs no entry.

    pieces: (entries,) int32, ids of target pieces. offsets: (source vocabulary size + 1,) int32, index of the first
        entry of each source piece; the last element is the number of entries.
    """

    pieces: np.ndarray
    offsets: np.ndarray

    @staticmethod
    def from_lists(lists: Sequence[np.ndarray]) -> Shortlist:
        """Return a shortlist from the target pieces of each source piece."""
        return Shortlist(np.concatenate(lists).astype(np.int32), np.cumsum([0, *map(len, lists)]).astype(np.int32))

    def to_file(self) -> bytes:
        return save({"pieces": self.pieces, "offsets": self.offsets})

    @staticmethod
    def from_file(contents: bytes, sizes: tuple[int, int], where: str) -> Shortlist:
        """Return a shortlist from the contents of a safetensors file.

        Args:
            sizes: source and target vocabulary size. where: path of the file in error messages.
        """
        try:
            arrays = load(contents)
            pieces, offsets = (arrays[name].copy() for name in ("pieces", "offsets"))       # aligned copies
            fits = (pieces.dtype == offsets.dtype == np.int32 and pieces.ndim == 1 and
                    offsets.shape == (sizes[0] + 1,) and offsets[0] == 0 and offsets[-1] == len(pieces) and
                    bool((offsets[:-1] <= offsets[1:]).all() and (pieces >= 0).all() and (pieces < sizes[1]).all()))
        except (SafetensorError, KeyError, ValueError):
            fits = False
        if not fits:                                                            # the kernels trust these numbers
            raise CheckpointError(f"{where} is not a shortlist for the vocabulary of this model. Make it again with "
                                  "seq2seq shortlist.")
        return Shortlist(pieces, offsets)
