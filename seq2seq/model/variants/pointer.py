"""Pointer networks (Vinyals et al. 2015, arXiv:1506.03134): the output is a sequence of positions of the input.

p(c_m = n) = softmax_n(v^T tanh(W x_n + U h_m)), where x_n are the encoder states, including that of `</s>`, and h_m is
the state of the decoder. The input of the decoder is the encoder state at the previous output position, c_{m-1}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seq2seq.data.batching import IGNORE_INDEX, Batch
from seq2seq.model.attention_scores import additive
from seq2seq.model.interface import Model
from seq2seq.model.layers import Dropout, Lookup, linear
from seq2seq.model.loss import LossSum
from seq2seq.model.packing import Sentences, check_length, pack_rows, source_and_target, unpack_rows
from seq2seq.model.variants.rnn import Encoder
from seq2seq.tokenizers.tokenizer import END_ID, START_ID

# Target id of the first source position; position p, counted from 0, has the id FIRST_POSITION_ID + p. The source's
# `</s>` has the id END_ID.
FIRST_POSITION_ID = END_ID + 1


@dataclass(frozen=True)
class PointerOutput:
    """Output of a pointer network.

    values: (tokens, END_ID + longest_source), log p of each target id (see `target_log_probabilities`).
    """

    values: Tensor

    def loss(self, target: Tensor, tokens: int, label_smoothing: float = 0.0) -> LossSum:
        """Return the negative log-likelihood of the targets. A recipe with label smoothing is refused."""
        counted = target != IGNORE_INDEX
        targets = target.where(counted, END_ID)                                 # log p of `</s>` is always finite
        found = self.values.gather(1, targets[:, None]).squeeze(1).where(counted, 0.0)
        return LossSum(-found.sum(), found.detach(), tokens)


@dataclass(frozen=True)
class PointerState:
    """Decoding state.

    memory, keys: (sentences, longest_source, d_model), encoder states x_n and W x_n, shared by a sentence's rows.
    lengths: (sentences,), number of tokens of each source.
    states: states of the decoder as in torch.nn, h of a GRU or (h, c) of an LSTM, each (layers, rows, d_model).
    attention: (rows, longest_source), attention weights of the last step.
    """

    memory: Tensor
    keys: Tensor
    lengths: Tensor
    states: Tensor | tuple[Tensor, ...]
    keep_attention: bool
    attention: Tensor | None = None

    def select(self, rows: Tensor) -> PointerState:
        flat = rows.flatten()
        states = self.states if isinstance(self.states, tuple) else (self.states,)
        sentences = rows[:, 0] // (states[0].shape[1] // len(self.lengths))
        memory, keys, lengths = ((part if len(rows) == len(part) else part.index_select(0, sentences))
                                 for part in (self.memory, self.keys, self.lengths))
        first, *others = (state.index_select(1, flat) for state in states)
        return replace(self, memory=memory, keys=keys, lengths=lengths, states=(first, *others) if others else first,
                       attention=None if self.attention is None else self.attention.index_select(0, flat))


class PointerNetwork(Model):
    """Pointer network: a bidirectional recurrent encoder, and a recurrent decoder that points at encoder states.

    The target vocabulary has END_ID + max_positions ids: special symbols, and one id per source position before `</s>`.

    Args:
        d_model: width of the embeddings, of the encoder states (both directions together) and of the decoder; even.
        cell: "gru" or "lstm".
        max_positions, scale_embedding: as in `Transformer`.
    """

    def __init__(self, *, source_vocab_size: int, d_model: int, encoder_layers: int = 1, decoder_layers: int = 1,
                 dropout: float = 0.0, cell: str = "gru", max_positions: int = 1024,
                 scale_embedding: bool = True) -> None:
        super().__init__()
        self.max_positions = max_positions
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.source_embedding = nn.Parameter(torch.empty(source_vocab_size, d_model).normal_(std=d_model**-0.5))
        self.encoder = Encoder(d_model, d_model, encoder_layers, cell, dropout)
        self.start_state = nn.Parameter(torch.zeros(1, d_model))                # input of the decoder's first step
        self.first = linear(d_model // 2, decoder_layers * d_model, fused=decoder_layers)
        self.decoder: nn.RNNBase = {"gru": nn.GRU, "lstm": nn.LSTM}[cell](
            d_model, d_model, decoder_layers, batch_first=True, dropout=dropout if decoder_layers > 1 else 0.0)
        self.key = linear(d_model, d_model)                                     # W
        self.query = linear(d_model, d_model)                                   # U
        self.score = nn.Parameter(torch.empty(1, d_model).normal_(std=d_model**-0.5))  # v
        self.dropout = Dropout(dropout)

    def forward(self, batch: Batch) -> PointerOutput:
        """Return log p of all target ids, (target_tokens, END_ID + longest_source). See `Model.forward`."""
        source, target = source_and_target(batch, self.max_positions)
        memory = self.encode(batch.source, source)
        # The decoder's input is the encoder state that the previous target token points at. `rows` counts encoder
        # states from 1, because row 0 is `start_state`, the input of the first step.
        begins = source.begins.long().index_select(0, target.sentence)
        rows = (begins + batch.target_input - FIRST_POSITION_ID).clamp(0, len(memory) - 1) + 1
        inputs = cast(Tensor, Lookup.apply(torch.cat([self.start_state, memory]),
                                           rows.where(batch.target_input != START_ID, 0)))
        inputs = unpack_rows(self.dropout(inputs), target)
        hidden, _ = self.decoder(inputs, self._first_states(memory, source))
        queries = unpack_rows(self.query(pack_rows(hidden, target)), target)
        keys = unpack_rows(self.key(memory), source)
        scores = additive(queries[:, None], keys[:, None], self.score).squeeze(1)  # (sentences, queries, keys)
        return PointerOutput(pack_rows(target_log_probabilities(scores, source.lengths), target))

    def encode(self, source: Tensor, sentences: Sentences) -> Tensor:
        """Compute the encoder states: (source_tokens,) -> (source_tokens, d_model)"""
        embedded = cast(Tensor, Lookup.apply(self.source_embedding, source)) * self.scale
        return self.dropout(self.encoder(self.dropout(embedded), sentences))

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int,
              keep_attention: bool = False) -> PointerState:
        check_length(longest_source, self.max_positions)
        sentences = Sentences.from_offsets(source_offsets, longest_source, len(source))
        memory = self.encode(source, sentences)
        return PointerState(unpack_rows(memory, sentences), unpack_rows(self.key(memory), sentences),
                            source_offsets.diff(), self._first_states(memory, sentences), keep_attention)

    @torch.no_grad()
    def step(self, last_tokens: Tensor, state: PointerState) -> tuple[Tensor, PointerState]:
        sentences = len(state.lengths)
        rows = torch.arange(len(last_tokens), device=last_tokens.device) // (len(last_tokens) // sentences)
        positions = (last_tokens - FIRST_POSITION_ID).clamp(0, state.memory.shape[1] - 1)
        inputs = state.memory[rows, positions]                                  # (rows, d_model)
        inputs = torch.where((last_tokens == START_ID)[:, None], self.start_state, inputs)
        hidden, states = self.decoder(inputs[:, None], state.states)
        queries = self.query(hidden[:, 0]).view(sentences, -1, hidden.shape[2])
        scores = additive(queries[:, None], state.keys[:, None], self.score).squeeze(1)
        attention = None
        if state.keep_attention:
            attention = mask_padding(scores, state.lengths).softmax(-1).flatten(0, 1)
        after = replace(state, states=states, attention=attention)
        log_probabilities = target_log_probabilities(scores, state.lengths).flatten(0, 1)
        return F.pad(log_probabilities, (0, self.max_positions - scores.shape[2]), value=-math.inf), after

    def _first_states(self, memory: Tensor, sentences: Sentences) -> Tensor | tuple[Tensor, ...]:
        """Compute the decoder's first states, each (layers, sentences, d_model), from the last state of the encoder's
        backward direction."""
        first = self.first(self.encoder.last_backward_outputs(memory, sentences)).tanh()
        first = first.view(len(sentences), self.decoder.num_layers, -1).transpose(0, 1).contiguous()
        return (first, torch.zeros_like(first)) if isinstance(self.decoder, nn.LSTM) else first


def mask_padding(scores: Tensor, lengths: Tensor) -> Tensor:
    """Return the scores with -inf in padding. Arguments: as in `target_log_probabilities`."""
    is_token = torch.arange(scores.shape[2], device=lengths.device) < lengths[:, None]
    return scores.masked_fill(~is_token[:, None], -math.inf)


def target_log_probabilities(scores: Tensor, lengths: Tensor) -> Tensor:
    """Turn scores of source tokens into log p of target ids.

    The unknown and the start symbol get a score of -inf. END_ID gets the score of `</s>`. The following ids get the
    scores of the source positions before `</s>`, in order. Log p is the log-softmax of these scores.

    Args:
        scores: (sentences, queries, longest_source); the last token of each source is `</s>`.
        lengths: (sentences,), number of tokens of each source.
    Returns:
        (sentences, queries, END_ID + longest_source); -inf for the ids of padding.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    last = (lengths.long() - 1).clamp(min=0)[:, None, None].expand(-1, scores.shape[1], 1)
    symbols = scores.new_full((*scores.shape[:2], END_ID), -math.inf)
    positions = mask_padding(scores, lengths - 1)[:, :, :-1]
    return torch.cat([symbols, scores.gather(2, last), positions], 2).log_softmax(-1)
