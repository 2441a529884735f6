"""Parts that the Transformer and the recurrent model share: embeddings, output layer, from a batch to logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from seq2seq.data.batching import Batch
from seq2seq.model.interface import Model
from seq2seq.model.layers import embeddings
from seq2seq.model.loss import Logits
from seq2seq.model.packing import Sentences, check_length, source_and_target


class EncoderDecoder(Model):
    """Model with an encoder and a decoder, which subclasses define.

    encode: (source_tokens,) -> the states that the decoder attends to, (source_tokens, d_model), and the sentences they
        belong to.
    decode: (target_tokens,) -> logits, (target_tokens, vocab_size), from the states and the sentences of both sides.
    start_decoder: returns the state before the first decoding step, from the states and their sentences.
    """

    encode: Callable[[Tensor, Sentences], tuple[Tensor, Sentences]]
    decode: Callable[[Tensor, Sentences, Tensor, Sentences], Logits]
    start_decoder: Callable[[Tensor, Sentences, bool], Any]

    def __init__(self, source_vocab_size: int, target_vocab_size: int, d_model: int, max_positions: int,
                 tied_embeddings: str, scale_embedding: bool, output_bias: bool) -> None:
        super().__init__()
        self.d_model, self.max_positions = d_model, max_positions
        self.scale = math.sqrt(d_model) if scale_embedding else 1.0
        self.target_embedding, self.source_embedding, self.output_weight = embeddings(
            tied_embeddings, source_vocab_size, target_vocab_size, d_model)
        self.output_bias = nn.Parameter(torch.zeros(target_vocab_size)) if output_bias else None

    def forward(self, batch: Batch) -> Logits:
        """Return the logits, (target_tokens, vocab_size). See `Model.forward`."""
        source, target = source_and_target(batch, self.max_positions)
        memory, source = self.encode(batch.source, source)
        return self.decode(batch.target_input, target, memory, source)

    @torch.no_grad()
    def start(self, source: Tensor, source_offsets: Tensor, longest_source: int, keep_attention: bool = False) -> Any:
        check_length(longest_source, self.max_positions)
        memory, sentences = self.encode(source, Sentences.from_offsets(source_offsets, longest_source, len(source)))
        return self.start_decoder(memory, sentences, keep_attention)
