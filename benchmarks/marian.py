"""The same model in Hugging Face transformers: MarianMTModel with our sizes, token ids and, if asked, weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from seq2seq.model.transformer import Transformer
from seq2seq.recipe import ModelSection
from seq2seq.tokenizer import END_ID, START_ID


def marian(section: ModelSection, vocab_size: int) -> Any:
    """MarianMTModel of the size that `section` describes, with fresh weights.

    Raises:
        ValueError: Marian has no such model.
    """
    if (section.norm, section.positions, section.tied_embeddings) != ("post", "sinusoidal", "all"):
        raise ValueError("Marian is post-norm, has sinusoidal positions, and ties all embeddings")
    return transformers.MarianMTModel(transformers.MarianConfig(
        vocab_size=vocab_size, d_model=section.d_model, encoder_layers=section.encoder_layers,
        decoder_layers=section.decoder_layers, encoder_attention_heads=section.num_heads,
        decoder_attention_heads=section.num_heads, encoder_ffn_dim=section.feed_forward,
        decoder_ffn_dim=section.feed_forward, dropout=section.dropout, activation_function=section.activation,
        scale_embedding=section.scale_embedding, max_position_embeddings=section.max_positions, eos_token_id=END_ID,
        pad_token_id=START_ID, decoder_start_token_id=START_ID, forced_eos_token_id=None, attn_implementation="sdpa",
    ))


@torch.no_grad()
def with_our_weights(theirs: Any, ours: Transformer) -> Any:
    """`theirs`, now with the weights of our model."""
    weights = {name: weight.detach().float() for name, weight in ours.named_parameters()}
    # Marian's positions are all sines, then all cosines; the paper's alternate. Only the sum of embedding and position
    # matters, so all that reads from or writes into d_model is reordered: 0, 2, 4, …, 1, 3, 5, …
    features = torch.arange(ours.d_model).view(-1, 2).T.flatten()
    found = theirs.state_dict()
    found["model.shared.weight"].copy_(weights["target_embedding"][:, features])
    if ours.output_bias is not None:
        found["final_logits_bias"].copy_(weights["output_bias"][None])

    def read(names: list[str], mine: str) -> None:                              # from d_model, into something else
        for name, weight, bias in zip(names, weights[f"{mine}.weight"].chunk(len(names)),
                                      weights[f"{mine}.bias"].chunk(len(names)), strict=True):
            found[f"{name}.weight"].copy_(weight[:, features])
            found[f"{name}.bias"].copy_(bias)

    def write(name: str, mine: str) -> None:                                    # into d_model
        found[f"{name}.weight"].copy_(weights[f"{mine}.weight"][features])
        found[f"{name}.bias"].copy_(weights[f"{mine}.bias"][features])

    for side, layers in (("encoder", len(ours.encoder)), ("decoder", len(ours.decoder))):
        for number in range(layers):
            mine, name = f"{side}.{number}", f"model.{side}.layers.{number}"
            read([f"{name}.self_attn.{part}_proj" for part in "qkv"], f"{mine}.self_attention.query_key_value")
            write(f"{name}.self_attn.out_proj", f"{mine}.self_attention.output")
            write(f"{name}.self_attn_layer_norm", f"{mine}.self_residual.norm")
            read([f"{name}.fc1"], f"{mine}.feed_forward.inner")
            write(f"{name}.fc2", f"{mine}.feed_forward.outer")
            write(f"{name}.final_layer_norm", f"{mine}.feed_forward_residual.norm")
            if side == "decoder":
                read([f"{name}.encoder_attn.q_proj"], f"{mine}.cross_attention.query")
                read([f"{name}.encoder_attn.{part}_proj" for part in "kv"], f"{mine}.cross_attention.key_value")
                write(f"{name}.encoder_attn.out_proj", f"{mine}.cross_attention.output")
                write(f"{name}.encoder_attn_layer_norm", f"{mine}.cross_residual.norm")
    return theirs


def padded(flat: Tensor, offsets: Tensor, value: int = START_ID) -> tuple[Tensor, Tensor]:
    """(tokens,) -> (sentences, longest) filled with `value`, and its mask of the same shape, 1 = a real token."""
    lengths = offsets.diff()
    rows = pad_sequence(list(flat.split(lengths.tolist())), batch_first=True, padding_value=value)
    return rows, (torch.arange(rows.shape[1]) < lengths[:, None]).long()
