"""Models with every attention function memorise a few pairs, and search reproduces them."""

import numpy as np
import pytest
import torch
from lookup import arrays_of, on_host

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.model import build_model
from seq2seq.recipe import validate_model
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from tests.test_end_to_end import PAIRS, RNN, TRANSFORMER, VARIANTS


def words_as_ids(sentences):
    words = sorted({word for sentence in sentences for word in sentence.split()})
    return [[3 + words.index(word) for word in sentence.split()] for sentence in sentences], len(words)


@pytest.mark.parametrize("keys", [TRANSFORMER, *(pytest.param(keys, marks=pytest.mark.slow)
                                                 for keys in (RNN, *VARIANTS))])
def test_every_attention_function_memorises_twenty_pairs(keys):
    from ruamel.yaml import YAML

    pairs = [line.split("|") for line in PAIRS.strip().splitlines()]
    (sources, source_words), (targets, target_words) = (words_as_ids(side) for side in zip(*pairs, strict=True))
    section = validate_model({
        "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0, "tied_embeddings": "decoder",
        **YAML(typ="safe").load(f"{{{keys}}}")})
    torch.manual_seed(1)
    size = 3 + max(source_words, target_words)                                  # what is copied has an id on both sides
    model = build_model(section, size, size)
    corpus = EncodedCorpus(EncodedSide.from_lists(sources), EncodedSide.from_lists(targets))
    batch = gather(corpus, np.arange(len(pairs)))
    steps, rate = 150 if "relu" in keys else 100, 0.01                          # ReLU attention learns more slowly
    optimizer = torch.optim.Adam(model.parameters(), rate)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        loss = model.loss(batch)
        optimizer.zero_grad()
        (loss.total / loss.tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    found = search(on_host(model), *arrays_of(batch), [20] * len(pairs), SearchOptions(1, power_length_penalty(1.0)))
    assert [best.tokens for best, *_ in found] == targets
