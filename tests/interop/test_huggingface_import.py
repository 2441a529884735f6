"""Imported Marian models give the same results as in transformers."""

import json

import numpy as np
import pytest
import torch

from seq2seq.cli import main
from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.errors import CheckpointError, FormatError
from seq2seq.inference.load_model import as_tensors
from seq2seq.interop.huggingface_files import local_folder, read_weights
from seq2seq.interop.huggingface_import import import_model
from seq2seq.storage.checkpoints import load_bundle
from seq2seq.tokenizers.line_splitting import OUTSIDE
from seq2seq.tokenizers.marian_vocabulary import MarianVocabulary
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import END_ID, START_ID
from seq2seq.translation.translator import Translator
from tests.marian_models import ENGLISH, GERMAN, LINES, make, tokenizer_of

pytest.importorskip("transformers")

KINDS = {
    "as OPUS-MT": {},
    "separate vocabularies": {"separate": True, "end": 1.7},
    "separate vocabularies, nothing tied": {"separate": True, "tied": False},
    "one vocabulary, output alone": {"tied": False},
    "one vocabulary, embeddings apart": {"shared": False},
    "ReLU, other sizes, pickled": {"activation": "relu", "d_model": 26, "heads": 2, "feed_forward": 31,
                                   "layers": (3, 1), "end": 2.3, "pickled": True},
    "GELU": {"activation": "gelu", "seed": 2},
}


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.replace(" ", "_"))
def models(request, tmp_path_factory):
    """Directory of a Marian model, the model in transformers, and a translator of the imported model."""
    directory = tmp_path_factory.mktemp("models")
    theirs = make(directory / "theirs", **KINDS[request.param])
    import_model(str(directory / "theirs"), directory / "ours")
    return directory / "theirs", theirs, Translator.load(directory / "ours", "cpu", "fp32")


def marian_target_ids(tokenizer, ours):
    """Return Marian's id for each target id of the imported model."""
    encoder = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    return torch.tensor([encoder[piece] for piece in ours.tokenizers.target.pieces(
        range(ours.tokenizers.target.vocab_size))])


@torch.no_grad()
def test_logits_equal_those_of_transformers(models):
    directory, theirs, ours = models
    tokenizer = tokenizer_of(directory)
    targets = tokenizer(text_target=ENGLISH)["input_ids"]
    longest, start = max(map(len, targets)), theirs.config.decoder_start_token_id
    shifted = torch.tensor([[start, *ids[:-1], *[start] * (longest - len(ids))] for ids in targets])
    expected = theirs(**tokenizer(GERMAN, return_tensors="pt", padding=True), decoder_input_ids=shifted).logits
    real = torch.arange(longest) < torch.tensor([len(ids) for ids in targets])[:, None]
    sides = [EncodedSide.from_lists(side.encode(lines)) for side, lines in
             ((ours.tokenizers.source, GERMAN), (ours.tokenizers.target, ENGLISH))]
    logits = ours.model(gather(EncodedCorpus(*sides), np.arange(len(GERMAN)))).dense()
    expected = expected[real][:, marian_target_ids(tokenizer, ours)]
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_translations_with_default_settings_equal_those_of_transformers(models):
    directory, theirs, ours = models
    tokenizer = tokenizer_of(directory)
    output = theirs.generate(**tokenizer(LINES, return_tensors="pt", padding=True), return_dict_in_generate=True,
                             output_scores=True)
    texts = tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    if tokenizer.separate_vocabs:                               # decoding removes only the source's symbols
        texts = [text.replace("<pad>", "").strip() for text in texts]
    translations = [best for best, *_ in ours.translate(LINES, safety_net=False)]
    compared = 0
    for translation, text, score in zip(translations, texts, output.sequences_scores.tolist(), strict=True):
        # At the maximum length, transformers gives </s> probability 1, so that scores differ.
        if translation.tokens < ours.decoding.max_length + 1:
            assert translation.text == text
            assert translation.score == pytest.approx(score, abs=1e-4)
            compared += 1
    assert compared > 2 and len({translation.tokens for translation in translations}) > 1


def test_text_is_split_into_the_same_pieces_as_in_transformers(models):
    directory, _, ours = models
    tokenizer = tokenizer_of(directory)
    # ☃ is in neither vocabulary. `</s>` in text is not compared: transformers reads it as the special symbol.
    lines = [*LINES, "", " ", "ein  Hund ", "☃", "☃☃ läuft ☃", "the dog", "ＨＵＮＤ", "12 %"]
    target = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    for side, arguments, encoder in ((ours.tokenizers.source, {"text": lines}, tokenizer.encoder),
                                     (ours.tokenizers.target, {"text_target": lines}, target)):
        names = {index: name for name, index in encoder.items()}
        expected = [[names[index] for index in ids[:-1]] for ids in tokenizer(**arguments)["input_ids"]]
        assert [side.pieces(ids) for ids in side.encode(lines)] == expected
    ids = ours.tokenizers.target.encode(ENGLISH)
    assert ours.tokenizers.target.decode([[START_ID, *line, END_ID] for line in ids]) == ENGLISH


def test_spans_are_the_character_offsets_of_the_pieces(models):
    source = models[2].tokenizers.source
    for line in LINES:
        pieces, spans = source.pieces(source.encode([line])[0]), source.spans([line])[0]
        assert "".join(line[begin:end] for begin, end in spans).replace(" ", "") == line.replace(" ", "")
        assert len(pieces) == len(spans)


def test_subword_sampling_draws_pieces_of_the_same_text(models):
    source = models[2].tokenizers.source
    sampled = [source.sample(GERMAN, 0.1, seed) for seed in range(5)]
    assert source.sample(GERMAN, 0.1, 3) == sampled[3]
    assert len({str(ids) for ids in sampled}) > 1
    assert all(source.decode(ids) == GERMAN for ids in sampled)
    assert source.sample(["☃☃"], 0.1, 1) == source.encode(["☃☃"])


def test_decoding_defaults_are_imported_with_the_model(models):
    decoding = models[2].decoding
    # The model's max_length of 41 includes the start symbol and </s>, which leaves 39 pieces.
    assert (decoding.beam_size, decoding.length_penalty, decoding.max_length) == (4, 1.0, 39)


# Languages


@pytest.fixture(scope="module")
def multilingual(tmp_path_factory):
    directory = tmp_path_factory.mktemp("multilingual")
    make(directory / "theirs", languages=(">>eng<<", ">>fra<<"), codes=("deu", "roa"))
    return directory


def test_a_language_token_is_one_piece(multilingual):
    import_model(str(multilingual / "theirs"), multilingual / "ours")
    source = Translator.load(multilingual / "ours", "cpu", "fp32").tokenizers.source
    line = Source("ein Hund", language="fra")
    expected = tokenizer_of(multilingual / "theirs")(">>fra<< ein Hund")["input_ids"]
    (ids,), (spans,) = source.encode([line]), source.spans([line])
    assert source.pieces(ids)[0] == ">>fra<<" and len(ids) == len(expected) - 1
    assert spans[0] == OUTSIDE and len(spans) == len(ids)
    for text in (">>fra<< ein Hund", ">>deu<< ein Hund"):
        assert not set(source.languages.values()) & set(source.encode([text])[0])


def test_the_target_language_can_be_chosen_at_import(multilingual, capsys):
    arguments = ["import", "--from", "huggingface", str(multilingual / "theirs"), "--output"]
    assert main([*arguments, str(multilingual / "all")]) == 0
    assert "2 languages (eng, fra)" in (said := capsys.readouterr().err) and "the default is deu to eng" in said
    assert main([*arguments, str(multilingual / "french"), "--target-language", "fra"]) == 0
    assert main([*arguments, str(multilingual / "french")]) == 2
    assert "french exists already" in capsys.readouterr().err
    every, french = (Translator.load(multilingual / name, "cpu", "fp32") for name in ("all", "french"))
    assert (every.languages.target, french.languages.target) == ("eng", "fra")
    assert french.encode(["ein Hund"]) == every.encode([">>fra<< ein Hund"])
    # A language token in the line takes precedence.
    assert french.encode([">>eng<< ein Hund"]) == every.encode([">>eng<< ein Hund"]) == every.encode(["ein Hund"])
    translation = french.translate(["ein Hund"])[0][0]
    assert translation.text == every.translate([">>fra<< ein Hund"])[0][0].text
    assert main([*arguments, str(multilingual / "no"), "--target-language", "ita"]) == 2
    assert "does not translate into 'ita'. Its target languages are eng, fra." in capsys.readouterr().err


# Models that cannot be imported (their messages: tests/messages/test_interop_messages.py)


class Harmful:
    """Object whose unpickling runs code: it creates a file."""

    def __reduce__(self):
        return (open, ("harm", "w"))


def test_only_tensors_are_unpickled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Harmful()}, tmp_path / "theirs" / "pytorch_model.bin")
    with pytest.raises(FormatError, match="something other than weights") as refused:
        import_model(str(tmp_path / "theirs"), tmp_path / "ours")
    assert not (tmp_path / "harm").exists()
    assert "weights_only" not in str(refused.value) and "Ask for the model as model.safetensors" in str(refused.value)


def test_a_name_that_is_not_a_directory_is_downloaded_from_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    requests = []

    def snapshot_download(name, allow_patterns):
        requests.append((name, "source.spm" in allow_patterns))
        if name == "nobody/nothing":
            raise huggingface_hub.errors.LocalEntryNotFoundError("there is no network\nmore")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert local_folder("Helsinki-NLP/opus-mt-de-en") == tmp_path
    assert requests == [("Helsinki-NLP/opus-mt-de-en", True)]
    with pytest.raises(FormatError, match="no such model can be downloaded from .* hub: there is no network$"):
        local_folder("nobody/nothing")
    with pytest.raises(FormatError, match="there is no directory no/such/place"):
        local_folder("no/such/place")


def test_a_bundle_contains_both_sentencepiece_models_and_the_vocabulary(models):
    _, _, ours = models
    files = ours.tokenizers.files()
    assert sorted(files) == ["source.model", "target.model", "vocabulary.json"]
    again = type(ours.tokenizers).from_files(files)
    assert isinstance(again.source, MarianVocabulary) and again.files() == files
    assert again.source.fingerprint == ours.tokenizers.source.fingerprint
    assert again.joint == ours.tokenizers.joint == ("joint" in json.loads(files["vocabulary.json"]))


def test_imported_embeddings_are_bit_identical_up_to_their_order(models, tmp_path):
    directory, theirs, ours = models
    import_model(str(directory), tmp_path / "again")
    order = torch.arange(theirs.config.d_model).view(2, -1).T.flatten()
    weights = as_tensors(load_bundle(tmp_path / "again").weights)
    ids = marian_target_ids(tokenizer_of(directory), ours)
    for name, marian_name in (("0.self_attention.output", "0.self_attn.out_proj"),
                              ("0.cross_attention.query", "0.encoder_attn.q_proj")):
        assert weights[f"decoder.{name}.weight"].sum() == pytest.approx(
            theirs.model.decoder.layers.get_submodule(marian_name).weight.sum().item(), abs=1e-4)
    assert torch.equal(weights["target_embedding"], theirs.model.decoder.embed_tokens.weight[ids][:, order])


class Call:
    """Object whose pickle calls a function with arguments when it is loaded."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("weights", [
    {"a": Call(eval, "open('executed', 'w')")}, torch.nn.Linear(2, 3), [torch.ones(2)], torch.ones(2), {"a": "text"},
    {"a": torch.zeros(1).expand(10**6, 10**6)}, {"a": torch.tensor([float("nan")])}, None])
def test_a_pickle_of_anything_but_finite_weights_is_refused(tmp_path, monkeypatch, weights):
    monkeypatch.chdir(tmp_path)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    with pytest.raises((FormatError, CheckpointError), match=r"pytorch_model\.bin"):
        read_weights(tmp_path)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("old", [False, True], ids=["zip", "before 1.6"])
def test_tied_transposed_and_half_weights_of_a_pickle_are_read(tmp_path, old):
    embedding, other = torch.randn(7, 5), torch.randn(3, 11)
    weights = {"a": embedding, "b": embedding, "t": other.T, "p": torch.nn.Parameter(other[:, 2:]), "h": other.half()}
    torch.save(weights, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    read = read_weights(tmp_path)
    assert read.keys() == weights.keys()
    assert all(torch.equal(read[name], weight.detach().float()) for name, weight in weights.items())
