"""Hierarchical context: the equations of Miculicich et al. 2018, the division of sources, and decoding."""

import numpy as np
import pytest
import torch

from seq2seq.data.batching import EncodedCorpus, EncodedSide, Shape, gather
from seq2seq.model import build_model
from seq2seq.model.packing import Sentences
from seq2seq.model.transformer import Transformer
from seq2seq.model.variants.hierarchical import Segments
from seq2seq.recipe import TransformerSection
from seq2seq.tokenizers.context import SEPARATOR_ID as SEP
from seq2seq.tokenizers.tokenizer import END_ID

# Ids of sources with two, no, one and an empty context, without `</s>`.
SOURCES = [[7, 8, SEP, 9, 10, 11, SEP, 12, 13], [5, 6, 7], [8, SEP, 9, 10, 11, 12], [SEP, 6]]
TARGETS = [[4, 5, 6], [7, 8], [9], [10, 11, 4, 5]]


SECTION = TransformerSection(d_model=8, encoder_layers=2, decoder_layers=2, num_heads=2, feed_forward=12, dropout=0.0,
                       context="hierarchical")


@pytest.fixture
def model():
    torch.manual_seed(3)
    built = build_model(SECTION, 16, 16).double().eval()
    for parameter in built.parameters():                                        # biases are 0 otherwise
        torch.nn.init.normal_(parameter, std=0.4)
    return built


def batch_of(sources=SOURCES, targets=TARGETS, fill=None):
    corpus = EncodedCorpus(EncodedSide.from_lists(sources), EncodedSide.from_lists(targets))
    return gather(corpus, np.arange(len(sources)), fill)


def sentences_of(batch):
    return Sentences.from_offsets(batch.source_offsets, batch.longest_source)


def test_sources_are_divided_after_each_separator():
    batch = batch_of()
    segments = Segments.of(batch.source, sentences_of(batch))
    assert segments.all.lengths.tolist() == [3, 4, 3, 4, 2, 5, 1, 2]
    assert segments.current.tolist() == [2, 3, 5, 7]
    assert segments.context[segments.has_context].tolist() == [1, 0, 4, 6]
    assert segments.has_context.tolist() == [[True, True], [False, False], [True, False], [True, False]]
    assert segments.current_sentences.begins.tolist() == [0, 3, 7, 12]


def test_filling_a_batch_changes_nothing(model):
    outcomes = []
    for fill in (None, Shape(41, 23, 7)):
        batch = batch_of(fill=fill)
        total = model.loss(batch).total
        outcomes.append([total.detach(), *torch.autograd.grad(total, list(model.parameters()))])
    torch.testing.assert_close(outcomes[1], outcomes[0], rtol=0, atol=1e-11)


def attend(query, keys, values, heads):
    """Multi-head attention of one query, (d_model,), by the equations."""
    size, parts = len(query) // heads, []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        weights = torch.softmax(keys[:, part] @ query[part] / size**0.5, 0)
        parts.append(weights @ values[:, part])
    return torch.cat(parts)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_gives_nearly_the_same_states(model, dtype):
    batch = batch_of()
    expected, _ = model.float().encode(batch.source, sentences_of(batch))
    found, _ = model.to(dtype).encode(batch.source, sentences_of(batch))
    assert found.isfinite().all() and (found.float() - expected).abs().max() < 0.1


@torch.no_grad()
def test_the_states_are_those_of_the_equations(model):
    batch, layer = batch_of(), model.hierarchy
    memory, current = model.encode(batch.source, sentences_of(batch))
    for number, source in enumerate(SOURCES):
        ids, sentences = [*source, END_ID], []
        while SEP in ids:
            sentences.append(ids[:ids.index(SEP) + 1])
            ids = ids[ids.index(SEP) + 1:]
        encoded = [Transformer.encode(model, torch.tensor(each),
                                      Sentences.from_offsets(torch.tensor([0, len(each)]), len(each)))[0]
                   for each in (*sentences, ids)]
        *context, last = encoded
        for position, hidden in enumerate(last):
            found = memory[current.begins[number] + position]
            if not context:
                torch.testing.assert_close(found, hidden)
                continue
            query = layer.word_query(hidden)
            read = torch.stack([layer.word_output(attend(query, *layer.word_key_value(states).chunk(2, 1), 2))
                                for states in reversed(context)])
            chosen = attend(layer.sentence_query(hidden), *layer.sentence_key_value(read).chunk(2, 1), 2)
            added = layer.feed_forward(layer.sentence_output(chosen)).dense()
            gate = torch.sigmoid(layer.gate_of_hidden(hidden) + layer.gate_of_context(added))
            torch.testing.assert_close(found, gate * hidden + (1 - gate) * added)


@torch.no_grad()
def test_a_step_gives_the_logits_of_the_whole_target(model):
    batch = batch_of()
    expected = model(batch).dense()
    state = model.start(batch.source, batch.source_offsets, batch.longest_source, keep_attention=True)
    for position in range(4):
        rows = [number for number, target in enumerate(TARGETS) if position <= len(target)]
        last = torch.tensor([1 if position == 0 else target[min(position, len(target)) - 1] for target in TARGETS])
        logits, state = model.step(last, state)
        for row in rows:
            torch.testing.assert_close(logits[row], expected[batch.target_offsets[row] + position])


def test_all_parameters_have_a_gradient(model):
    model.train()
    logits = model(batch_of())
    (logits.hidden @ logits.weight.T).logsumexp(1).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0
               for name, parameter in model.named_parameters() if "bias" not in name)


def test_the_weights_of_context_words_and_of_their_sentences_add_up_to_1(model):
    maps = model.attention_maps(batch_of())
    (context,) = maps.context
    torch.testing.assert_close(context[0, 0, 7:10].sum(1), torch.ones(3).double())  # only the context is attended to
    assert context[0, 0, 7:10, 7:].abs().sum() == 0 and context[0, 0, :7].abs().sum() == 0
    assert context[1].abs().sum() == 0
    for cross in maps.cross:                                                    # over the current sentence alone
        torch.testing.assert_close(cross[0, :, :4].sum(2), torch.ones(2, 4).double())
        assert cross[0, :, :, :7].abs().sum() == 0
    for encoder in maps.encoder:
        torch.testing.assert_close(encoder[0, :, :10].sum(2), torch.ones(2, 10).double())
        assert encoder[0, :, 0, 3:].abs().sum() == 0                            # each sentence alone


def test_the_kernels_refuse_the_model():
    assert "reads the context hierarchically" in SECTION.peculiarity
