"""Models in Hugging Face form, imported and exported, against transformers itself."""

import json

import numpy as np
import pytest
import torch

from seq2seq.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.checkpoint import load_bundle
from seq2seq.cli import main
from seq2seq.errors import FormatError
from seq2seq.interop.huggingface import import_model, local_folder
from seq2seq.numbering import Numbered
from seq2seq.tokenizer import END_ID, START_ID, UNKNOWN_ID
from seq2seq.translator import Translator
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
    """Their directory, their model, and ours, imported."""
    directory = tmp_path_factory.mktemp("models")
    theirs = make(directory / "theirs", **KINDS[request.param])
    import_model(str(directory / "theirs"), directory / "ours")
    return directory / "theirs", theirs, Translator.load(directory / "ours", "cpu", "fp32")


def ids_of_theirs(tokenizer, ours):
    """Their id of each of our target ids."""
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
    found = ours.model(gather(EncodedCorpus(*sides), np.arange(len(GERMAN)))).dense()
    expected = expected[real][:, ids_of_theirs(tokenizer, ours)]
    assert expected.std() > 0.3
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@torch.no_grad()
def test_translations_equal_those_of_transformers_with_nothing_but_defaults(models):
    directory, theirs, ours = models
    tokenizer = tokenizer_of(directory)
    output = theirs.generate(**tokenizer(LINES, return_tensors="pt", padding=True), return_dict_in_generate=True,
                             output_scores=True)
    texts = tokenizer.batch_decode(output.sequences, skip_special_tokens=True)
    if tokenizer.separate_vocabs:                                               # it skips the source's symbols alone
        texts = [text.replace("<pad>", "").strip() for text in texts]
    found = [best for best, *_ in ours.translate(LINES, safety_net=False)]
    compared = 0
    for mine, text, score in zip(found, texts, output.sequences_scores.tolist(), strict=True):
        # Where they have to end, transformers counts the end as certain.
        if mine.tokens < ours.decoding.max_length + 1:
            assert mine.text == text
            assert mine.score == pytest.approx(score, abs=1e-4)
            compared += 1
    assert compared > 2 and len({mine.tokens for mine in found}) > 1


def test_text_has_the_pieces_that_it_has_in_transformers(models):
    directory, _, ours = models
    tokenizer = tokenizer_of(directory)
    # ☃ is in neither language, `zwei` as a whole in one only; what is no text in transformers (`</s>`) is left out.
    lines = [*LINES, "", " ", "ein  Hund ", "☃", "☃☃ läuft ☃", "the dog", "ＨＵＮＤ", "12 %"]
    target = tokenizer.target_encoder if tokenizer.separate_vocabs else tokenizer.encoder
    for side, given, encoder in ((ours.tokenizers.source, {"text": lines}, tokenizer.encoder),
                                 (ours.tokenizers.target, {"text_target": lines}, target)):
        names = {index: name for name, index in encoder.items()}
        expected = [[names[index] for index in ids[:-1]] for ids in tokenizer(**given)["input_ids"]]
        assert [side.pieces(ids) for ids in side.encode(lines)] == expected
    ids = ours.tokenizers.target.encode(ENGLISH)
    assert ours.tokenizers.target.decode([[START_ID, *line, END_ID] for line in ids]) == ENGLISH


def test_the_start_symbol_is_never_generated(models):
    _, _, ours = models
    assert {START_ID, UNKNOWN_ID} <= set(ours.tokenizers.target.control_ids)
    assert ours.tokenizers.target.pieces([UNKNOWN_ID, START_ID, END_ID]) == ["<unk>", "<pad>", "</s>"]


def test_spans_say_where_pieces_come_from(models):
    source = models[2].tokenizers.source
    for line in LINES:
        pieces, spans = source.pieces(source.encode([line])[0]), source.spans([line])[0]
        assert "".join(line[begin:end] for begin, end in spans).replace(" ", "") == line.replace(" ", "")
        assert len(pieces) == len(spans)


def test_subword_sampling_draws_pieces_of_the_same_text(models):
    source = models[2].tokenizers.source
    sampled = [source.sample(GERMAN, 0.1, seed) for seed in range(5)]
    assert source.sample(GERMAN, 0.1, 3) == sampled[3]
    assert len({str(each) for each in sampled}) > 1
    assert all(source.decode(each) == GERMAN for each in sampled)
    assert source.sample(["☃☃"], 0.1, 1) == source.encode(["☃☃"])


def test_decode_defaults_come_with_the_model(models):
    decoding = models[2].decoding
    # 41 positions: the start symbol, 39 pieces, and </s>.
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
    line = ">>fra<< ein Hund"
    expected = tokenizer_of(multilingual / "theirs")(line)["input_ids"]
    (ids,), (spans,) = source.encode([line]), source.spans([line])
    assert source.pieces(ids)[0] == ">>fra<<" and len(ids) == len(expected) - 1
    assert spans[0] == (0, 7) and len(spans) == len(ids)
    assert source.pieces(source.encode([">>deu<< ein Hund"])[0])[0] != ">>deu<<"


def test_the_target_language_can_be_chosen_once(multilingual, capsys):
    arguments = ["import", "--from", "huggingface", str(multilingual / "theirs"), "--output"]
    assert main([*arguments, str(multilingual / "all")]) == 0
    assert "begin each line with one of >>eng<<, >>fra<<" in capsys.readouterr().err
    assert main([*arguments, str(multilingual / "french"), "--target-language", "fra"]) == 0
    every, french = (Translator.load(multilingual / name, "cpu", "fp32") for name in ("all", "french"))
    assert french.languages.target == "fra"
    assert french.tokenizers.source.encode(["ein Hund"]) == every.tokenizers.source.encode([">>fra<< ein Hund"])
    # A line that names another language gets it.
    assert french.tokenizers.source.encode([">>eng<< ein Hund"]) == every.tokenizers.source.encode([">>eng<< ein Hund"])
    found = french.translate(["ein Hund"])[0][0]
    assert found.text == every.translate([">>fra<< ein Hund"])[0][0].text
    assert main([*arguments, str(multilingual / "no"), "--target-language", "ita"]) == 2
    assert "does not translate into 'ita'. Its languages: eng, fra." in capsys.readouterr().err


# What cannot be imported


def test_what_marian_has_not_is_refused(tmp_path):
    make(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    config = json.loads(path.read_text())
    for change, message in (
        ({"model_type": "t5"}, "model_type: t5. Marian models can be imported"),
        ({"decoder_ffn_dim": 59}, "encoder and decoder differ"),
        ({"activation_function": "tanh"}, "its activation is tanh"),
        ({"normalize_before": True}, "normalize_before"),
        ({"encoder_layers": 3}, "model.encoder.layers.2.self_attn.q_proj.weight is missing"),
        ({"encoder_layers": 1}, "weights that no Marian model has: model.encoder.layers.1"),
        ({"d_model": 44}, "has the shape"),
        ({"eos_token_id": 5000}, "start and the end"),
    ):
        path.write_text(json.dumps(config | change))
        with pytest.raises(FormatError, match=message):
            import_model(str(tmp_path / "theirs"), tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_damage_is_named(tmp_path):
    make(tmp_path / "theirs")
    for name, damage, message in (
        ("model.safetensors", b"no tensors", "cannot be read"), ("vocab.json", b'{"a": 1}', "without a gap"),
        ("source.spm", b"nothing", "source.spm is not a sentencepiece model"), ("config.json", b"{", "is no JSON"),
    ):
        kept = (tmp_path / "theirs" / name).read_bytes()
        (tmp_path / "theirs" / name).write_bytes(damage)
        with pytest.raises(FormatError, match=message):
            import_model(str(tmp_path / "theirs"), tmp_path / "ours")
        (tmp_path / "theirs" / name).write_bytes(kept)
    (tmp_path / "theirs" / "model.safetensors").unlink()
    with pytest.raises(FormatError, match="neither model.safetensors nor pytorch_model.bin"):
        import_model(str(tmp_path / "theirs"), tmp_path / "ours")


class Harmful:
    """What a pickle can do."""

    def __reduce__(self):
        return (open, ("harm", "w"))


def test_nothing_is_unpickled_but_tensors(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "theirs")
    (tmp_path / "theirs" / "model.safetensors").unlink()
    torch.save({"model.shared.weight": Harmful()}, tmp_path / "theirs" / "pytorch_model.bin")
    with pytest.raises(FormatError, match="cannot be read"):
        import_model(str(tmp_path / "theirs"), tmp_path / "ours")
    assert not (tmp_path / "harm").exists()


def test_a_name_is_looked_up_on_the_hub(tmp_path, monkeypatch):
    import huggingface_hub

    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, "source.spm" in allow_patterns))
        if name == "nobody/nothing":
            raise huggingface_hub.errors.LocalEntryNotFoundError("there is no network\nmore")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert local_folder("Helsinki-NLP/opus-mt-de-en") == tmp_path
    assert asked == [("Helsinki-NLP/opus-mt-de-en", True)]
    with pytest.raises(FormatError, match="the Hugging Face hub does not give it: there is no network$"):
        local_folder("nobody/nothing")
    with pytest.raises(FormatError, match="there is no directory no/such/place"):
        local_folder("no/such/place")


def test_a_bundle_keeps_both_models_and_the_vocabulary(models):
    _, _, ours = models
    files = ours.tokenizers.files()
    assert sorted(files) == ["source.model", "target.model", "vocabulary.json"]
    again = type(ours.tokenizers).from_files(files)
    assert isinstance(again.source, Numbered) and again.files() == files
    assert again.source.fingerprint == ours.tokenizers.source.fingerprint
    assert again.joint == ours.tokenizers.joint == ("joint" in json.loads(files["vocabulary.json"]))


def test_weights_are_taken_over_to_the_bit(models, tmp_path):
    directory, theirs, ours = models
    import_model(str(directory), tmp_path / "again")
    features = torch.arange(theirs.config.d_model).view(2, -1).T.flatten()
    weights = load_bundle(tmp_path / "again").weights
    ids = ids_of_theirs(tokenizer_of(directory), ours)
    for name, theirs_of_it in (("0.self_attention.output", "0.self_attn.out_proj"),
                               ("0.cross_attention.query", "0.encoder_attn.q_proj")):
        assert weights[f"decoder.{name}.weight"].sum() == pytest.approx(
            theirs.model.decoder.layers.get_submodule(theirs_of_it).weight.sum().item(), abs=1e-4)
    assert torch.equal(weights["target_embedding"], theirs.model.decoder.embed_tokens.weight[ids][:, features])
