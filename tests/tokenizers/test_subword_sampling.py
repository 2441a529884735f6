"""Segmentations are sampled with the probabilities of the papers, and identically in every process."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
from collections import Counter
from math import exp, isclose

import pytest
import sentencepiece

from seq2seq.tokenizers.subword_sampling import SubwordSampler

TEXT = ["ein Hund läuft", "eine Katze schläft", "der Hund schläft", "die Katze läuft im Haus",
        "die Kinder laufen im Garten und lachen laut"]
ODD_LINES = ["", " ", "  zwei  Worte ", "\t\x00\r\n", "你好", "<s> <unk> <0x41>", "👩\u200d👩\u200d👧", "\u0085\u2028"]
DRAWS = 5_000


def train(kind: str, **options) -> sentencepiece.SentencePieceProcessor:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXT), model_writer=model, model_type=kind, vocab_size=300, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2,
        **options)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


@pytest.fixture(scope="module")
def unigram() -> sentencepiece.SentencePieceProcessor:
    return train("unigram")


@pytest.fixture(scope="module")
def bpe() -> sentencepiece.SentencePieceProcessor:
    return train("bpe")


@pytest.fixture(params=["unigram", "bpe"])
def processor(request) -> sentencepiece.SentencePieceProcessor:
    return request.getfixturevalue(request.param)


def segmentations(processor, text: str) -> list[list[str]]:
    """Return all segmentations of a text."""
    if not text:
        return [[]]
    known = {processor.id_to_piece(index) for index in range(processor.vocab_size()) if not processor.is_byte(index)}
    return [[text[:end], *rest] for end in range(1, len(text) + 1) if text[:end] in known
            for rest in segmentations(processor, text[end:])]


@pytest.mark.parametrize("alpha", [0.0, 0.3])
def test_unigram_segmentations_are_drawn_with_the_power_of_their_probability(unigram, alpha):
    """Kudo 2018, section 3.2: P(x | X) ~ P(x)^alpha. Five standard deviations of the frequency are allowed."""
    every = segmentations(unigram, "\u2581Hund\u2581läuft")
    weights = {tuple(pieces): exp(alpha * sum(unigram.get_score(unigram.piece_to_id(piece)) for piece in pieces))
               for pieces in every}
    assert len(weights) > 11
    drawn = Counter(tuple(unigram.id_to_piece(index) for index in ids)
                    for ids in SubwordSampler(unigram).sample(["Hund läuft"] * DRAWS, alpha, 3))
    assert set(drawn) <= set(weights)
    for pieces, weight in weights.items():
        chance = weight / sum(weights.values())
        deviation = (chance * (1 - chance) / DRAWS) ** 0.5
        assert abs(drawn[pieces] / DRAWS - chance) <= 5 * deviation + 1 / DRAWS, pieces


@pytest.mark.parametrize("kind, alpha", [("unigram", 0.2), ("bpe", 0.4)])
def test_frequencies_are_those_of_sentencepiece(request, kind, alpha):
    """Frequencies agree within 6 standard deviations with sentencepiece, whose seed differs in each process."""
    processor = request.getfixturevalue(kind)
    lines = ["Katze schläft"] * DRAWS
    ours = Counter(map(tuple, SubwordSampler(processor).sample(lines, alpha, 5)))
    theirs = Counter(map(tuple, processor.encode(lines, enable_sampling=True, alpha=alpha, nbest_size=-1)))
    assert len(theirs) > 5
    for ids, count in theirs.most_common(11):
        assert abs(ours[ids] - count) < 6 * (ours[ids] + count) ** 0.5, processor.id_to_piece(list(ids))


def test_unigram_takes_the_best_where_alpha_is_large(unigram):
    assert SubwordSampler(unigram).sample(TEXT + ODD_LINES, 1e6, 1) == unigram.encode(TEXT + ODD_LINES)


def test_bpe_without_dropout_is_bpe(bpe):
    assert SubwordSampler(bpe).sample(TEXT + ODD_LINES, 0.0, 1) == bpe.encode(TEXT + ODD_LINES)


def test_bpe_with_all_merges_left_out_is_characters(bpe):
    pieces = [bpe.id_to_piece(index) for index in SubwordSampler(bpe).sample(["ein Hund"], 1.0, 1)[0]]
    assert pieces == list("\u2581ein\u2581Hund")


def test_every_sampled_segmentation_spells_the_same_text(processor):
    for seed in range(7):
        ids = SubwordSampler(processor).sample(ODD_LINES + TEXT, 0.2, seed)
        assert processor.decode(ids) == ODD_LINES + TEXT
        assert min(min(line) for line in ids if line) > 2                       # no unknown, start or end


def test_samples_do_not_depend_on_earlier_samples(processor):
    sampler = SubwordSampler(processor)
    first = sampler.sample(TEXT, 0.3, 7)
    sampler.sample(TEXT[::-1] + ODD_LINES, 0.9, 8)
    assert sampler.sample(TEXT, 0.3, 7) == first == SubwordSampler(processor).sample(TEXT, 0.3, 7)
    assert sampler.sample(TEXT, 0.3, 8) != first


def test_a_full_cache_changes_nothing(processor, monkeypatch):
    expected = SubwordSampler(processor).sample(TEXT * 3, 0.3, 7)
    monkeypatch.setattr("seq2seq.tokenizers.subword_sampling.MAX_CACHED_WORDS", 2)
    assert SubwordSampler(processor).sample(TEXT * 3, 0.3, 7) == expected


def test_another_process_draws_the_same(processor, tmp_path):
    (tmp_path / "model").write_bytes(processor.serialized_model_proto())
    program = textwrap.dedent(f"""
        import sentencepiece
        from seq2seq.tokenizers.subword_sampling import SubwordSampler
        processor = sentencepiece.SentencePieceProcessor(model_file={str(tmp_path / "model")!r})
        print(SubwordSampler(processor).sample({TEXT!r}, 0.3, 7))
    """)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.strip() == str(SubwordSampler(processor).sample(TEXT, 0.3, 7))


def test_pieces_that_reach_across_words_are_drawn_too():
    processor = train("bpe", split_by_whitespace=False)
    assert any("\u2581" in processor.id_to_piece(index)[1:] for index in range(processor.vocab_size()))
    assert SubwordSampler(processor).sample(TEXT, 0.0, 1) == processor.encode(TEXT)


def test_words_of_thousands_of_characters_can_be_sampled(processor):
    line = "schläft你" * 1000
    assert processor.decode(SubwordSampler(processor).sample([line], 0.3, 1)) == [line]


def test_the_probabilities_at_a_position_sum_to_one(unigram):
    for cumulative, begins, ids in SubwordSampler(unigram)._lattice("\u2581Garten", 0.1)[1:]:
        assert cumulative == sorted(cumulative) and len(cumulative) == len(begins) == len(ids)
        assert len(cumulative) == 1 or (cumulative[-2] < 1 and not isclose(cumulative[-2], 1))
