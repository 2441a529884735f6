"""Small models that were trained for a few steps, for exports to other libraries."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.inference.load_model import stored_weights
from seq2seq.model import build_model
from seq2seq.recipe import TokenizerSection, parse_recipe, validate_model
from seq2seq.recipe.yaml_document import write_yaml
from seq2seq.storage.checkpoints import save_best
from seq2seq.tokenizers.context import CONTEXT_SEPARATOR, in_context
from seq2seq.tokenizers.tokenizer import Tokenizers, train_tokenizers
from tests.marian_models import ENGLISH, GERMAN

BASE = {"d_model": 26, "num_heads": 13, "encoder_layers": 1, "decoder_layers": 2, "feed_forward": 37,
        "max_positions": 71, "output_bias": True}


@cache
def trained_tokenizers(joint: bool, kind: str, context: int) -> Tokenizers:
    section = TokenizerSection(vocab_size=290 if joint else 280, joint=joint, type=kind)
    return train_tokenizers(zip(GERMAN, ENGLISH, strict=True), section, 1,
                            symbols=[CONTEXT_SEPARATOR] if context else [])


@cache
def trained_weights(joint: bool, kind: str, context: int, steps: int, section: tuple[tuple[str, Any], ...]
                    ) -> dict[str, torch.Tensor]:
    tokenizers = trained_tokenizers(joint, kind, context)
    torch.manual_seed(1)
    network = build_model(validate_model(dict(section)), tokenizers.source.vocab_size,
                          tokenizers.target.vocab_size).eval()
    batch = gather(EncodedCorpus(*(EncodedSide.from_lists(side.encode(lines)) for side, lines in (
        (tokenizers.source, in_context(GERMAN, context)), (tokenizers.target, ENGLISH)))), np.arange(len(GERMAN)))
    if network.output_bias is not None:
        # After these few steps the control tokens would still have 1 % of the probability. CTranslate2 suppresses them
        # before the softmax, which would make its scores higher.
        network.output_bias.data[tokenizers.target.never_generated_ids] = -9
    optimizer = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(network(batch).dense(), batch.target_output).backward()
        optimizer.step()
    return stored_weights(network)


def make_bundle(directory: Path, *, joint: bool = True, kind: str = "unigram", steps: int = 50, beam_size: int = 3,
                decoding: dict[str, Any] | None = None, context: int = 0, **model: Any) -> Path:
    """Write a run with a model that was trained for a few steps on six sentence pairs, and its validation set beside.
    Return the path of its bundle."""
    directory.mkdir()
    for name, lines in (("valid.de", GERMAN), ("valid.en", GERMAN)):
        (directory.parent / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = {"source": "../valid.de", "target": "../valid.en"}
    section = BASE | model
    if section.get("type", "transformer") != "transformer":
        section = {key: value for key, value in section.items() if key != "feed_forward"}
    text = write_yaml({
        "name": "small", "languages": {"source": "de", "target": "en"},
        "data": {"train": [files], "valid": files, "cleaning": {"max_pieces": section["max_positions"] - 4},
                 "context": context},
        "tokenizer": {"joint": joint, "vocab_size": 290, "type": kind}, "model": section,
        "training": {"label_smoothing": 0.0},
        "decoding": {"beam_size": beam_size, "length_penalty": 0.7} | (decoding or {})})
    tokenizers = trained_tokenizers(joint, kind, context)
    weights = trained_weights(joint, kind, context, steps, tuple(sorted(section.items())))
    (directory / "recipe.yaml").write_text(text, encoding="utf-8")
    return save_best(directory, "small", weights, parse_recipe(text, directory / "recipe.yaml"), tokenizers.files(), {})
