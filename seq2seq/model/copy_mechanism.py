"""Copy mechanism (See et al. 2017) for names and numbers that do not occur in the training data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.model.attention import ScaledDotProduct, mask_to_bias
from seq2seq.model.interface import CopyMixture, Logits, State, mixture_log_probabilities
from seq2seq.model.layers import linear
from seq2seq.model.packing import Sentences, check_length, pack, source_and_target, unpack


class CopySource(NamedTuple):
    """Encoded source of the copy mechanism. `CopyHead` defines w_h and h.

    keys: (sentences, 1, longest_source, d_model). gate_terms: (sentences, longest_source), w_h h of each source token.
    pieces: (sentences, longest_source) int64, source token ids.
    bias: (sentences, 1, 1, longest_source), added to the scores: 0 for tokens that can be copied, a large negative
        number for others.
    """

    keys: Tensor
    gate_terms: Tensor
    pieces: Tensor
    bias: Tensor

    def select(self, sentences: Tensor) -> CopySource:
        """Return the encoded source of some sentences. sentences: indices of these sentences, (selected,)."""
        return CopySource(*(part.index_select(0, sentences) for part in self))


class CopyHead(nn.Module):
    """Layer that computes a copy distribution over the source tokens, and a gate (see `CopyMixture`).

    The copy distribution `a` comes from a separate attention head. Its query is the decoder state s before the output
    layer, and its keys are projections of the encoder states h. Therefore `a` always sums to 1, and the decoder's
    cross-attention may be of any kind (hard, ReLU, many heads) and may use kernels that do not return weights. The gate
    is g = sigmoid(w_s s + w_h sum_i a_i h_i + b) (See et al. 2017, arXiv:1704.04368, equation 8, but without the term
    for the decoder input, because s already depends on the decoder input).
    """

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.query = linear(d_model, d_model)
        self.key = linear(d_model, d_model)
        self.weighing = ScaledDotProduct(1, d_model)
        self.of_state = nn.Linear(d_model, 1)                                   # w_s and b
        self.of_source = nn.Linear(d_model, 1, bias=False)                      # w_h

    def forward(self, logits: Logits, memory: Tensor, source: Tensor, target_sentences: Sentences,
                source_sentences: Sentences) -> CopyMixture:
        """Return the mixture for every target position.

        Args:
            logits: logits over the vocabulary; `logits.hidden` is s.
            memory: (source_tokens, d_model), h. source: (source_tokens,), token ids.
        """
        copy_source = self.start(memory, source, source_sentences)
        queries = unpack(self.query(logits.hidden)[:, None, None], target_sentences)[0]
        weights = pack(self.weighing(queries, copy_source.keys, copy_source.bias), target_sentences).squeeze(1)
        gate_terms, pieces = (part.index_select(0, target_sentences.sentence)
                              for part in (copy_source.gate_terms, copy_source.pieces))
        gate_logit = self.of_state(logits.hidden).squeeze(1) + (weights * gate_terms).sum(1)
        return CopyMixture(logits, gate_logit, weights, pieces)

    def start(self, memory: Tensor, source: Tensor, sentences: Sentences) -> CopySource:
        """Encode the source for `step`. memory: (source_tokens, d_model), h. source: (source_tokens,), token ids."""
        flat = torch.cat([self.key(memory), self.of_source(memory)], 1)
        padded = unpack(flat[:, None, None], sentences)[0]                      # (sentences, 1, longest, d_model + 1)
        # If `</s>` could be copied, finished hypotheses would fill the beam. Only a source of `</s>` alone allows it.
        copyable_tokens = (sentences.lengths - 1).clamp(min=1)
        copyable = torch.arange(sentences.longest, device=source.device) < copyable_tokens[:, None]
        bias = mask_to_bias(copyable[:, None, None], memory.dtype)
        return CopySource(padded[..., :-1], padded[:, 0, :, -1], source[sentences.padded_tokens], bias)

    def step(self, hidden: Tensor, logits: Tensor, copy_source: CopySource) -> Tensor:
        """Return log p of the mixture, (rows, vocab_size). hidden: (rows, d_model), s. logits: (rows, vocab_size)."""
        sentences, beam = len(copy_source.keys), len(hidden) // len(copy_source.keys)
        queries = self.query(hidden).view(sentences, 1, beam, -1)
        weights = cast(Tensor, self.weighing(queries, copy_source.keys, copy_source.bias)).view(len(hidden), -1)
        gate_terms, pieces = (part.repeat_interleave(beam, 0) for part in (copy_source.gate_terms, copy_source.pieces))
        gate_logit = self.of_state(hidden).squeeze(1) + (weights * gate_terms).sum(1)
        return mixture_log_probabilities(logits, gate_logit, weights, pieces)


@dataclass(frozen=True)
class CopyState:
    """Decoding state of a `CopyingModel`. decoder: state of the same model without copying. beam: rows per sentence."""

    decoder: State
    source: CopySource
    beam: int = 1

    @property
    def attention(self) -> Tensor | None:
        return self.decoder.attention

    def select(self, rows: Tensor) -> CopyState:
        all_remain = len(rows) == len(self.source.keys)
        source = self.source if all_remain else self.source.select(rows[:, 0] // self.beam)
        return CopyState(self.decoder.select(rows), source, rows.shape[1])


class CopyingModel(nn.Module):
    """Copy mechanism of a model, as a base class that precedes the model's class. `build_transformer` and
    `build_recurrent_model` add `copying`."""

    variant = "copies from the source"
    copying: CopyHead
    # What the mechanism needs of a model: see `Transformer`.
    max_positions: int
    output_weight: nn.Parameter
    output_bias: nn.Parameter | None
    encode: Callable[[Tensor, Sentences], tuple[Tensor, Sentences]]
    decode: Callable[[Tensor, Sentences, Tensor, Sentences], Logits]
    start_decoder: Callable[[Tensor, Sentences, bool], State]
    step_decoder: Callable[..., tuple[Tensor, State]]

    def forward(self, batch: Batch) -> CopyMixture:
        source, target = source_and_target(batch, self.max_positions)
        memory, source = self.encode(batch.source, source)
        logits = self.decode(batch.target_input, target, memory, source)
        return cast(CopyMixture, self.copying(logits, memory, batch.source, target, source))

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> CopyState:
        check_length(longest_source, self.max_positions)
        memory, sentences = self.encode(source, Sentences.from_offsets(source_offsets, longest_source, len(source)))
        return CopyState(self.start_decoder(memory, sentences, keep_attention),
                         self.copying.start(memory, source, sentences))

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: CopyState, **options: Any) -> tuple[Tensor, CopyState]:
        """See `interface.Stepwise.step`. options: of the model's own `step`."""
        hidden, decoder = self.step_decoder(last_tokens, state.decoder, **options)
        logits = Logits(hidden, self.output_weight, self.output_bias).dense()
        return self.copying.step(hidden, logits, state.source), replace(state, decoder=decoder)
