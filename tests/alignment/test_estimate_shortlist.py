"""A shortlist has the target pieces that attention links to a source piece, the most frequent link first."""

from types import SimpleNamespace

import numpy as np
import pytest

from seq2seq.alignment import estimate_shortlist
from seq2seq.alignment.estimate_shortlist import ShortlistCounts
from seq2seq.errors import UserError
from seq2seq.tokenizers.tokenizer import END_ID

SOURCE = ["<unk>", "<s>", "</s>", "▁ein", "▁Hund", "▁Rom"]
TARGET = ["<unk>", "<s>", "</s>", "▁Rom", "▁a", "▁dog", "▁one"]
LINKS = {"ein": {"a", "one"}, "Hund": {"dog"}, "Rom": {"Rom"}}


class Words:
    """Vocabulary of whole words."""

    def __init__(self, pieces):
        self.all, self.vocab_size = pieces, len(pieces)

    def encode(self, lines):
        return [[self.all.index(f"▁{word}") for word in line.split()] for line in lines]

    def pieces(self, ids):
        return [self.all[index] for index in ids]


class Engine:
    """Engine whose attention follows LINKS, but is highest for `</s>`."""

    cross_layers, max_positions = 2, 5

    def cross_attention(self, source, source_offsets, targets, layer):
        found = []
        for begin, end, target in zip(source_offsets[:-1], source_offsets[1:], targets, strict=False):
            weights = np.zeros((2, len(target) + 1, end - begin), np.float32)
            weights[:, :, -1] = 0.9
            for row, word in enumerate(target):
                for column, piece in enumerate(source[begin : end - 1]):
                    linked = TARGET[word][1:] in LINKS[SOURCE[piece][1:]]
                    weights[:, row, column] = [0.2, 0.1] if linked else [0.0, 0.05]
            found.append(weights)
        return found


@pytest.fixture
def translator():
    tokenizers = SimpleNamespace(source=Words(SOURCE), target=Words(TARGET))

    def encode_pairs(pairs):
        return (tokenizers.source.encode([source for source, _ in pairs]),
                tokenizers.target.encode([target for _, target in pairs]))

    return SimpleNamespace(engine=Engine(), tokenizers=tokenizers, encode_pairs=encode_pairs,
                           decoding=SimpleNamespace(batch_tokens_or_default=7))


def lists(counts):
    found = counts.shortlist()
    return {SOURCE[piece]: [TARGET[word] for word in found.pieces[found.offsets[piece] : found.offsets[piece + 1]]]
            for piece in range(len(SOURCE)) if found.offsets[piece] < found.offsets[piece + 1]}


def test_linked_pieces_come_in_the_order_of_their_counts_after_the_piece_with_the_same_text(translator, monkeypatch):
    monkeypatch.setattr(estimate_shortlist, "FREQUENT", 1)
    counts, done = ShortlistCounts(translator), []
    counts.add([("ein Hund", "a dog"), ("Hund ein", "one dog"), ("ein", "one")], done.append)
    counts.add([("Rom Hund", "Rom dog"), ("Rom", "a"), ("ein Hund ein Hund ein", "dog dog dog dog dog"), ("", "")],
               done.append)
    assert lists(counts) == {"<unk>": ["<unk>"], "<s>": ["<s>"], "</s>": ["▁dog"], "▁ein": ["▁one", "▁a"],
                             "▁Rom": ["▁Rom", "▁a"]}
    assert counts.too_long == 1 and sum(done) == 7


def test_a_source_piece_has_a_limited_number_of_target_pieces(translator, monkeypatch):
    monkeypatch.setattr(estimate_shortlist, "FREQUENT", 0)
    monkeypatch.setattr(estimate_shortlist, "MAX_TARGETS", 1)
    counts = ShortlistCounts(translator)
    counts.add([("ein Hund", "a dog"), ("ein Hund", "a dog"), ("ein", "one")])
    assert lists(counts)["▁ein"] == ["▁a"] and "</s>" not in lists(counts)


def test_without_text_only_pieces_with_the_same_text_are_listed(translator):
    counts = ShortlistCounts(translator)
    counts.add([])
    counts.add([("", "")])
    assert lists(counts) == {"<unk>": ["<unk>"], "<s>": ["<s>"], "▁Rom": ["▁Rom"]}


def test_a_model_without_cross_attention_is_refused(translator):
    translator.engine.cross_layers = 0
    with pytest.raises(UserError):
        ShortlistCounts(translator)


def test_end_of_sentence_has_the_id_that_the_kernels_expect():
    assert SOURCE[END_ID] == TARGET[END_ID] == "</s>"
