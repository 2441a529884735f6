"""Copy mechanism (See et al. 2017), for names and numbers that training has not seen."""

from __future__ import annotations

from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from seq2seq.model.attention import Weighing, linear
from seq2seq.model.interface import Logits, Mixture, mixed
from seq2seq.model.masks import bias_of
from seq2seq.model.packing import Sentences, pack, unpack


class CopiedSource(NamedTuple):
    """Encoded source of `CopyHead`.

    keys: (sentences, 1, longest_source, d_model). hints: (sentences, longest_source), w_h h of each source token, its
    term in the gate. pieces: (sentences, longest_source) int64, ids. bias: (sentences, 1, 1, longest_source), added to
    the scores: 0 for a token that can be copied, a large negative number elsewhere.
    """

    keys: Tensor
    hints: Tensor
    pieces: Tensor
    bias: Tensor

    def select(self, sentences: Tensor) -> CopiedSource:
        """Return the source of these sentences, (new sentences,) indices."""
        return CopiedSource(*(part.index_select(0, sentences) for part in self))


class CopyHead(nn.Module):
    """Turns a decoder's output into a `Mixture`: a copy distribution over source tokens and a gate.

    The copy distribution comes from an attention head of its own over the encoder states h, with the last decoder state
    s as the query. It is therefore a distribution whatever the decoder's own attention is (hard, ReLU, many heads),
    and that attention can use kernels that do not return weights. The gate is g = sigmoid(w_s s + w_h sum_i a_i h_i +
    b) (See et al. 2017, arXiv:1704.04368, equation 8, without the decoder input, which s depends on).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = linear(d_model, d_model)
        self.key = linear(d_model, d_model)
        self.weighing = Weighing(1, d_model)
        self.of_state = nn.Linear(d_model, 1)                                   # w_s and b
        self.of_source = nn.Linear(d_model, 1, bias=False)                      # w_h

    def forward(self, logits: Logits, memory: Tensor, source: Tensor, target_sentences: Sentences,
                source_sentences: Sentences) -> Mixture:
        """Return the mixture for every target position.

        Args:
            logits: of the vocabulary's distribution; `logits.hidden` is s.
            memory: (source_tokens, d_model), h. source: (source_tokens,), ids.
        """
        copied = self.start(memory, source, source_sentences)
        queries = unpack(self.query(logits.hidden)[:, None, None], target_sentences)[0]
        weights = pack(self.weighing(queries, copied.keys, copied.bias), target_sentences).squeeze(1)
        hints, pieces = (part.index_select(0, target_sentences.sentence) for part in (copied.hints, copied.pieces))
        return Mixture(logits, self._gate(logits.hidden, weights, hints), weights, pieces)

    def start(self, memory: Tensor, source: Tensor, sentences: Sentences) -> CopiedSource:
        """Encode the source for `step`. memory: (source_tokens, d_model), h. source: (source_tokens,), ids."""
        flat = torch.cat([self.key(memory), self.of_source(memory)], 1)
        padded = unpack(flat[:, None, None], sentences)[0]                      # (sentences, 1, longest, d_model + 1)
        # `</s>` cannot be copied: copies would end hypotheses at every step, and soon fill the beam. Only in an empty
        # sentence, which has no other token, it can.
        words = (sentences.offsets.diff() - 1).clamp(min=1)
        copyable = torch.arange(sentences.longest, device=source.device) < words[:, None]
        bias = bias_of(copyable[:, None, None], memory.dtype)
        return CopiedSource(padded[..., :-1], padded[:, 0, :, -1], source[sentences.slots], bias)

    def step(self, hidden: Tensor, logits: Tensor, copied: CopiedSource) -> Tensor:
        """Return log p of the mixture, (rows, vocab_size). hidden: (rows, d_model), s. logits: (rows, vocab_size)."""
        sentences, beam = len(copied.keys), len(hidden) // len(copied.keys)
        queries = self.query(hidden).view(sentences, 1, beam, -1)
        weights = cast(Tensor, self.weighing(queries, copied.keys, copied.bias)).view(len(hidden), -1)
        hints, pieces = (part.repeat_interleave(beam, 0) for part in (copied.hints, copied.pieces))
        return mixed(logits, self._gate(hidden, weights, hints), weights, pieces)

    def _gate(self, hidden: Tensor, weights: Tensor, hints: Tensor) -> Tensor:
        """The logit of g, (rows,)."""
        return cast(Tensor, self.of_state(hidden).squeeze(1)) + (weights * hints).sum(1)
