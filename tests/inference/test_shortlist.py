"""Shortlists of output words: in the search of the kernels, in a bundle, and as contents of a file."""

import numpy as np
import pytest
import torch
from random_models import GERMAN, recipe_text, save_random_model, trained_tokenizers
from safetensors.numpy import save
from sections import native_engine

from seq2seq.errors import CheckpointError, OptionError
from seq2seq.inference import int8
from seq2seq.inference.kernel_library import INSTRUCTION_SETS, Functions
from seq2seq.inference.shortlist import Shortlist
from seq2seq.search.beam import search
from seq2seq.search.options import SearchOptions, power_length_penalty
from seq2seq.storage.checkpoints import SHORTLIST, load_bundle, save_bundle
from seq2seq.tokenizers.tokenizer import END_ID
from seq2seq.translation.translator import Translator

LENGTHS = tuple(range(1, 18)) * 3
SOURCE_SIZE = 23


def random_shortlist(vocab_size, seed=1, longest=9):
    """A shortlist of up to `longest` target pieces for each source piece, in any order."""
    random = np.random.default_rng(seed)
    return Shortlist.from_lists([random.permutation(vocab_size)[: random.integers(longest + 1)]
                                 for _ in range(SOURCE_SIZE)])


def all_pieces(vocab_size):
    """A shortlist in which the first target piece of every source piece is one of all in turn; `</s>` has them all."""
    return Shortlist.from_lists([np.arange(vocab_size)[::-1] if piece == END_ID else np.array([piece])
                                 for piece in range(SOURCE_SIZE)])


@pytest.fixture(params=["int8"])
def kernels(libraries, request):
    """The functions of the fastest library for a precision. Shortlists are for int8."""
    return Functions(next(path for name, path in libraries.items() if name in INSTRUCTION_SETS[request.param]))


@pytest.mark.parametrize("kernels", ["fp32"], indirect=True)
def test_other_precisions_consider_all_pieces(searched):
    few = Shortlist.from_lists([np.array([END_ID])] * SOURCE_SIZE)
    assert searched(3, few, 1) == searched(3, few, 0)


@pytest.fixture
def searched(make_model, make_batch, kernels, monkeypatch):
    """Function that searches sentences of a batch with the int8 engine of a model with a large vocabulary."""
    batch = make_batch(LENGTHS, LENGTHS, vocab_size=SOURCE_SIZE)
    source, offsets = batch.source.numpy(), batch.source_offsets.numpy()

    def run(beam_size, shortlist, pieces, sentences=tuple(range(51)), threads=1, vocab_size=2503, **options):
        monkeypatch.setattr(int8, "num_threads", lambda: threads)
        model = make_model(torch.float32, source_vocab_size=SOURCE_SIZE, target_vocab_size=vocab_size,
                           tied_embeddings="decoder")
        engine = native_engine(model, kernels)
        engine.shortlist = shortlist
        parts = [source[offsets[sentence] : offsets[sentence + 1]] for sentence in sentences]
        search_options = SearchOptions(beam_size, power_length_penalty(1.0), n_best=beam_size, shortlist=pieces,
                                       banned_ids=[0, 1, 7, 1029], **options)
        return search(engine, np.concatenate(parts), np.cumsum([0, *map(len, parts)], dtype=np.int32),
                      [3 + sentence % 11 for sentence in sentences], search_options, engine.whole_search)

    run.source = [source[begin:end] for begin, end in zip(offsets[:-1], offsets[1:], strict=True)]
    return run


@pytest.mark.parametrize("beam_size", [1, 3])
def test_a_shortlist_of_all_pieces_gives_what_none_gives(searched, beam_size):
    assert searched(beam_size, all_pieces(2503), 1) == searched(beam_size, None, 0)


@pytest.mark.parametrize("beam_size", [1, 5])
def test_a_sentence_is_searched_with_its_own_pieces_whatever_is_searched_with_it(searched, beam_size):
    shortlist = random_shortlist(2503)
    together = searched(beam_size, shortlist, 7)
    assert together == searched(beam_size, shortlist, 7, threads=5)
    assert together != searched(beam_size, None, 0)
    for sentence in (0, 5, 16, 50):
        assert searched(beam_size, shortlist, 7, [sentence]) == [together[sentence]]


@pytest.mark.parametrize("pieces", [1, 3, 1000])
def test_translations_consist_of_pieces_in_the_shortlist(searched, pieces):
    shortlist = random_shortlist(2503)
    for source, hypotheses in zip(searched.source, searched(3, shortlist, pieces), strict=True):
        lists = {token: shortlist.pieces[shortlist.offsets[token] : shortlist.offsets[token + 1]] for token in source}
        allowed = {piece for token, listed in lists.items()
                   for piece in (listed if token == END_ID else listed[:pieces]).tolist()}
        assert {token for hypothesis in hypotheses for token in hypothesis.tokens} <= allowed - {7, 1029}


def test_a_sentence_without_listed_pieces_has_an_empty_translation(searched):
    empty = Shortlist.from_lists([np.empty(0, np.int32)] * SOURCE_SIZE)
    assert {tuple(one.tokens) for hypotheses in searched(2, empty, 3) for one in hypotheses} == {()}


def test_a_search_with_hooks_considers_all_pieces(searched):
    hook = {"logits_processors": [lambda hypotheses, scores: None]}
    assert searched(2, random_shortlist(2503), 3, **hook) == searched(2, None, 0, **hook)


def test_a_model_without_a_shortlist_refuses_the_option(searched):
    with pytest.raises(OptionError):
        searched(1, None, 100)


PIECES, OFFSETS = np.array([3, 2, 4, 3], np.int32), np.array([0, 2, 2, 4], np.int32)


@pytest.mark.parametrize("arrays", [
    {"pieces": PIECES}, {"pieces": PIECES, "offsets": OFFSETS[:-1]}, {"pieces": PIECES - 3, "offsets": OFFSETS},
    {"pieces": PIECES + 1, "offsets": OFFSETS}, {"pieces": PIECES, "offsets": OFFSETS + 1},
    {"pieces": PIECES, "offsets": np.array([0, 3, 2, 4], np.int32)}, {"pieces": PIECES[:3], "offsets": OFFSETS},
    {"pieces": PIECES, "offsets": np.array([0, 2**31 - 1, -(2**31), 4], np.int32)},     # differences overflow
    {"pieces": PIECES[None], "offsets": OFFSETS}, {"pieces": PIECES, "offsets": OFFSETS[:0]},
    {"pieces": PIECES.astype(np.float32), "offsets": OFFSETS},
    {"pieces": PIECES.astype(np.int64) + 2**32, "offsets": OFFSETS}, None], ids=str)
def test_a_file_that_does_not_fit_the_vocabularies_is_refused(arrays):
    with pytest.raises(CheckpointError):
        Shortlist.from_file(b"{}" if arrays is None else save(arrays), (3, 5), "model/shortlist.safetensors")


def test_a_file_has_the_shortlist():
    read = Shortlist.from_file(Shortlist(PIECES, OFFSETS).to_file(), (3, 5), "")
    assert read.pieces.tolist() == PIECES.tolist() and read.offsets.tolist() == OFFSETS.tolist()


def test_a_bundle_keeps_its_shortlist_and_translates_with_it(kernels, tmp_path):
    text = recipe_text(283, "d_model: 14, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 17",
                       "beam_size: 3, max_length_ratio: 1.0, max_length_offset: 5, safety_net: false")
    path = save_random_model(tmp_path / "model", text, trained_tokenizers(text), seed=5, noise=0.1)
    bundle, size = load_bundle(path), Translator.load(path, "cpu", "int8").tokenizers.target.vocab_size
    listed = [np.array([5, 9]) if piece == END_ID else np.array([11, 13]) for piece in range(size)]
    files = {**bundle.tokenizer_files, SHORTLIST: Shortlist.from_lists(listed).to_file()}
    for name in ("copy", "copy of the copy"):
        path = save_bundle(tmp_path / name, bundle.weights, bundle.recipe_text, files, bundle.metadata)
        bundle = load_bundle(path)
        files = bundle.tokenizer_files
    translator = Translator.load(path, "cpu", "int8")
    texts, full = ([best.text for best, *_ in translator.translate(GERMAN, shortlist=pieces)] for pieces in (1, 0))
    assert set("".join(texts)) <= set("".join(translator.tokenizers.target.decode([[5, 9, 11]]))) | {" "}
    assert texts != full
    (path / SHORTLIST).write_bytes(b"")
    with pytest.raises(CheckpointError):
        Translator.load(path, "cpu", "int8")
