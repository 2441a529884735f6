"""Models. `build_model` is the only place where a recipe meets layers."""

from __future__ import annotations

import torch

from seq2seq.model.attention import runs_packed
from seq2seq.model.language_model import LanguageModel
from seq2seq.model.pointer_network import PointerNetwork
from seq2seq.model.rnn import RecurrentModel
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import ModelSection

Model = Transformer | RecurrentModel | PointerNetwork | LanguageModel


def build_model(section: ModelSection, source_vocab_size: int, target_vocab_size: int) -> Model:
    """Build the model of a recipe's `model` section, with parameters initialised from torch's random state.

    Raises:
        ValueError: all embeddings are tied, but the vocabularies differ in size.
    """
    if section.type == "rnn":
        return RecurrentModel(
            source_vocab_size=source_vocab_size,
            target_vocab_size=target_vocab_size,
            d_model=section.d_model,
            encoder_layers=section.encoder_layers,
            decoder_layers=section.decoder_layers,
            num_heads=section.num_heads,
            cell=section.cell,
            score=section.attention_score,
            normalize=section.normalize,
            hard=section.selection == "hard",
            input_feeding=section.input_feeding,
            dropout=section.dropout,
            max_positions=section.max_positions,
            tied_embeddings=section.tied_embeddings,
            scale_embedding=section.scale_embedding,
            output_bias=section.output_bias,
            copy=section.copy,
        )
    if section.type == "pointer":
        return PointerNetwork(
            source_vocab_size=source_vocab_size,
            d_model=section.d_model,
            encoder_layers=section.encoder_layers,
            decoder_layers=section.decoder_layers,
            dropout=section.dropout,
            cell=section.cell,
            max_positions=section.max_positions,
            scale_embedding=section.scale_embedding,
        )
    if section.type == "language_model":
        return LanguageModel(
            vocab_size=target_vocab_size,
            d_model=section.d_model,
            layers=section.decoder_layers,
            num_heads=section.num_heads,
            feed_forward=section.feed_forward,
            dropout=section.dropout,
            activation=section.activation,
            pre_norm=section.norm == "pre",
            positions=section.positions,
            max_positions=section.max_positions,
            tied_embeddings=section.tied_embeddings != "none",
            scale_embedding=section.scale_embedding,
            output_bias=section.output_bias,
            score=section.attention_score,
            normalize=section.normalize,
            window=section.window,
        )
    return Transformer(
        source_vocab_size=source_vocab_size,
        target_vocab_size=target_vocab_size,
        d_model=section.d_model,
        encoder_layers=section.encoder_layers,
        decoder_layers=section.decoder_layers,
        num_heads=section.num_heads,
        feed_forward=section.feed_forward,
        dropout=section.dropout,
        activation=section.activation,
        pre_norm=section.norm == "pre",
        positions=section.positions,
        max_positions=section.max_positions,
        tied_embeddings=section.tied_embeddings,
        scale_embedding=section.scale_embedding,
        output_bias=section.output_bias,
        copy=section.copy,
        score=section.attention_score,
        normalize=section.normalize,
        window=section.window,
        hard=section.selection == "hard",
    )


def trains_packed(section: ModelSection, device: torch.device, dtype: torch.dtype) -> bool:
    """Return True if training pads no sentence, because all attention runs in the variable-length kernel.

    Then the cost of a batch does not depend on the length of its longest sentence. Recurrent models, additive scores,
    ReLU weights, hard attention and copying pad on every device.
    """
    pads = (section.type in ("rnn", "pointer") or section.attention_score == "additive" or section.normalize == "relu"
            or section.selection == "hard" or section.copy)
    heads = section.num_heads
    return not pads and runs_packed(torch.empty(0, heads, section.d_model // heads, dtype=dtype, device=device))
