"""The same model in Hugging Face transformers: MarianMTModel with our sizes, token ids and, if asked, weights."""

from __future__ import annotations

from typing import Any

import transformers

from seq2seq.interop.marian import config_of, section_from, weights_to
from seq2seq.model.load_model import stored_weights
from seq2seq.model.transformer import Transformer
from seq2seq.recipe import ModelSection
from seq2seq.tokenizers.tokenizer import END_ID, START_ID


def marian(section: ModelSection, vocab_size: int) -> Any:
    """MarianMTModel of the size that `section` describes, with fresh weights.

    Raises:
        ValueError: Marian has no such model.
    """
    if (section.norm, section.positions, section.tied_embeddings) != ("post", "sinusoidal", "all"):
        raise ValueError("Marian is post-norm, has sinusoidal positions, and ties all embeddings")
    config = config_of(section, vocab_size, vocab_size, start=START_ID, end=END_ID) | {"forced_eos_token_id": None}
    return transformers.MarianMTModel(transformers.MarianConfig(**config, attn_implementation="sdpa"))


def with_our_weights(theirs: Any, ours: Transformer) -> Any:
    """`theirs`, now with the weights of our model."""
    section = section_from(theirs.config.to_dict(), output_bias=ours.output_bias is not None)
    weights = {name: weight.float() for name, weight in stored_weights(ours).items()}
    theirs.load_state_dict(weights_to(weights, section), strict=False)
    return theirs
