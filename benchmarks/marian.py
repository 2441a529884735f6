"""MarianMTModel of Hugging Face transformers with the sizes and token ids of a seq2seq model, and optionally with its
weights."""

from __future__ import annotations

from typing import Any

import transformers

from seq2seq.inference.load_model import stored_weights
from seq2seq.interop.huggingface_weights import (
    ARCHITECTURES,
    config_for,
    model_section_from_config,
    weights_to_huggingface,
)
from seq2seq.model.transformer import Transformer
from seq2seq.tokenizers.tokenizer import END_ID, START_ID


def marian(section: Any, vocab_size: int) -> Any:
    """Return a MarianMTModel with the sizes of `section` and random weights.

    Raises:
        ValueError: MarianMTModel does not support the model.
    """
    if (section.norm, section.positions, section.tied_embeddings) != ("post", "sinusoidal", "all"):
        raise ValueError("MarianMTModel supports only norm: post, positions: sinusoidal and tied_embeddings: all")
    config = config_for(ARCHITECTURES["marian"], section, vocab_size, vocab_size, {
        "start": START_ID, "pad": START_ID, "end": END_ID}) | {"forced_eos_token_id": None}
    return transformers.MarianMTModel(transformers.MarianConfig(**config, attn_implementation="sdpa"))


def with_our_weights(theirs: Any, ours: Transformer) -> Any:
    """Copy the weights of `ours` into `theirs`, and return `theirs`."""
    section = model_section_from_config(theirs.config.to_dict(), theirs.state_dict())
    weights = {name: weight.float() for name, weight in stored_weights(ours).items()}
    theirs.load_state_dict(weights_to_huggingface(weights, ARCHITECTURES["marian"], section), strict=False)
    return theirs
