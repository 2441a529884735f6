"""Imported M2M-100, NLLB-200 and mBART-50 models give the same results as in transformers."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from seq2seq.cli import main
from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.data.corpus import read_pairs
from seq2seq.data.preparation import encoded_blocks, known_characters
from seq2seq.documents.translate_document import translate_document
from seq2seq.errors import FormatError
from seq2seq.evaluation.recipe_tests import read_tests
from seq2seq.evaluation.system_comparison import translate_tests
from seq2seq.inference.load_model import build, read_stored_model
from seq2seq.interop.huggingface_export import export_model
from seq2seq.interop.huggingface_import import import_model
from seq2seq.interop.huggingface_weights import architecture_of, weights_from_huggingface
from seq2seq.languages import is_same_language
from seq2seq.model.freezing import freeze
from seq2seq.recipe import parse_recipe
from seq2seq.recipe.directions import language_token
from seq2seq.storage.checkpoints import stored_recipe
from seq2seq.tokenizers.line_splitting import OUTSIDE
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.tokenizer import END_ID, START_ID
from seq2seq.training.guided_alignment import _links_of_block
from seq2seq.training.validation import Validation
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator
from tests.fairseq_models import LINES, make, mixed_lines

pytest.importorskip("transformers")

KINDS = {
    "NLLB": {"end": 0.75},
    "NLLB, nothing tied": {"end": 1.8, "tied": False, "d_model": 26, "heads": 2, "feed_forward": 31, "layers": (3, 1),
                           "seed": 2},
    "M2M-100, SiLU": {"kind": "m2m100", "end": 3.4, "activation": "swish", "scale": False, "d_model": 28, "heads": 7,
                      "seed": 3, "layers": (1, 2), "unused": 7},
    "mBART": {"kind": "mbart50", "end": 8.0, "activation": "gelu", "seed": 8, "unused": -1},
    "mBART, nothing tied": {"kind": "mbart50", "end": 2.5, "activation": "gelu", "tied": False, "d_model": 26,
                            "heads": 2, "feed_forward": 31, "layers": (3, 1), "seed": 6, "unused": -1},
    "mBART, ReLU": {"kind": "mbart50", "end": 9.0, "d_model": 28, "heads": 7, "scale": False, "seed": 3,
                    "layers": (1, 2), "unused": 3},
}
DIRECTIONS = {"NllbTokenizer": [("eng_Latn", "deu_Latn"), ("eng_Latn", "zho_Hans")],
              "M2M100Tokenizer": [("en", "de"), ("en", "zh")],
              "MBart50Tokenizer": [("en_XX", "de_DE"), ("en_XX", "zh_CN")]}
NUMBER_OF_LANGUAGES = {"NllbTokenizer": 9, "M2M100Tokenizer": 100, "MBart50Tokenizer": 52}
SENTENCES = [" ".join(LINES[(3 * number + step) % len(LINES)] for step in range(1 + number % 3))
             for number in range(200)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.replace(" ", "_"))
def models(request, tmp_path_factory):
    """Model and tokenizer in transformers, directory of both, and a translator of the imported model."""
    directory = tmp_path_factory.mktemp("models")
    theirs, tokenizer = make(directory / "theirs", **KINDS[request.param])
    import_model(str(directory / "theirs"), directory / "ours")
    return theirs, tokenizer, directory, Translator.load(directory / "ours", "cpu", "fp32")


def token_name(tokenizer, code):
    return f"__{code}__" if tokenizer.__class__.__name__ == "M2M100Tokenizer" else code


def their_ids(theirs, tokenizer, ours):
    """Return the id in transformers of each id of the imported model."""
    languages = {language_token(code): token_name(tokenizer, code) for code in ours.tokenizers.source.languages}
    ids = []
    for name in ours.tokenizers.target.pieces(range(ours.tokenizers.target.vocab_size)):
        ids.append(int(name.split()[1][:-1]) if name.startswith("<unused ") else
                   tokenizer.convert_tokens_to_ids(languages.get(name, name)))
    assert sorted(ids) == list(range(theirs.config.vocab_size))
    return torch.tensor(ids)


def directions_of(tokenizer):
    return DIRECTIONS[tokenizer.__class__.__name__]


def encoded_by(tokenizer, lines, direction, **arguments):
    tokenizer.src_lang, tokenizer.tgt_lang = direction
    return tokenizer(lines, **arguments)


def test_logits_and_gradients_equal_those_of_transformers(models):
    theirs, tokenizer, directory, ours = models
    model = build(read_stored_model(directory / "ours"))
    order = their_ids(theirs, tokenizer, ours)
    direction = directions_of(tokenizer)[0]
    sources, targets = LINES[:7], LINES[3:10]
    labels = encoded_by(tokenizer, sources, direction, text_target=targets)["labels"]
    longest = max(map(len, labels))
    real = torch.arange(longest) < torch.tensor([len(ids) for ids in labels])[:, None]
    shifted = torch.tensor([[2, *ids[:-1], *[1] * (longest - len(ids))] for ids in labels])
    expected = theirs(**encoded_by(tokenizer, sources, direction, return_tensors="pt", padding=True),
                      decoder_input_ids=shifted).logits[real]
    lines = list(map(ours.source, sources))
    sides = [EncodedSide.from_lists(side) for side in (
        ours.encode(lines), ours.tokenizers.target.encode(ours.tokenizers.target.target_lines(targets, lines)))]
    batch = gather(EncodedCorpus(*sides), np.arange(len(lines)))
    logits = model.train()(batch).dense() if model.dropout.probability == 0 else model.eval()(batch).dense()
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected[:, order], rtol=0, atol=1e-4)
    torch.nn.functional.cross_entropy(logits, batch.target_output).backward()
    theirs.zero_grad()
    torch.nn.functional.cross_entropy(
        expected, torch.tensor([index for ids in labels for index in ids])).backward()
    section, ids = stored_recipe(directory / "ours").model, order.tolist()
    section = section.model_copy(update={"output_bias": False})         # not a parameter of theirs
    expected = weights_from_huggingface({name: weight.grad for name, weight in theirs.named_parameters()
                                         if weight.grad is not None},
                                        architecture_of(theirs.config.to_dict()), section, ids, ids)
    found = {name: weight.grad for name, weight in model.named_parameters() if name != "output_bias"}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max(), name


def translations_of(models, lines, beam_size):
    """Return the share of equal translations of a direction, and the number of different lengths."""
    theirs, tokenizer, _, ours = models
    order = their_ids(theirs, tokenizer, ours)
    banned = [[index] for index in order[ours.tokenizers.target.never_generated_ids].tolist()]
    compared, lengths = 0, set()
    for direction in directions_of(tokenizer):
        output = theirs.generate(
            **encoded_by(tokenizer, lines, direction, return_tensors="pt", padding=True), num_beams=beam_size,
            forced_bos_token_id=tokenizer.convert_tokens_to_ids(token_name(tokenizer, direction[1])),
            bad_words_ids=banned, max_length=31,
            **({"early_stopping": True, "length_penalty": 1.6} if beam_size > 1 else {}))
        texts = tokenizer.batch_decode(output[:, 2:], skip_special_tokens=True)
        found = [best for best, *_ in ours.into(direction[1]).translate(
            lines, beam_size=beam_size, length_penalty=1.6, safety_net=False)]
        for translation, text, row in zip(found, texts, output.tolist(), strict=True):
            if 2 in row[1:]:                                    # at the maximum length, only ours ends with </s>
                assert translation.text == " ".join(text.split())
                compared += 1
                lengths.add(translation.tokens)
    return compared, lengths


@pytest.mark.parametrize("beam_size", [1, 5])
def test_translations_equal_those_of_transformers(models, beam_size):
    compared, lengths = translations_of(models, SENTENCES[:20], beam_size)
    assert compared > 10 and len(lengths) > 1


@pytest.mark.slow
@pytest.mark.parametrize("beam_size", [1, 5])
def test_translations_of_200_sentences_equal_those_of_transformers(models, beam_size):
    compared, lengths = translations_of(models, SENTENCES, beam_size)
    assert compared > 100 and len(lengths) > 2


def test_text_in_six_scripts_has_the_ids_of_transformers_with_every_language_token(models):
    theirs, tokenizer, _, ours = models
    order = their_ids(theirs, tokenizer, ours)
    lines = [*LINES, "☃", "☃☃ läuft ☃", "ＨＵＮＤ", "12 %", "der  Hund"]
    source, target = ours.tokenizers.source, ours.tokenizers.target
    codes = list(source.languages)
    assert len(codes) == NUMBER_OF_LANGUAGES[tokenizer.__class__.__name__]
    for code in codes:
        texts = lines if code == codes[0] else lines[:2]
        read = [Source(line, source_language=code, language=code) for line in texts]
        expected = encoded_by(tokenizer, texts, (code, code), text_target=texts)
        for side, found in (("input_ids", source.encode(read)),
                            ("labels", target.encode(target.target_lines(texts, read)))):
            assert [[*order[ids].tolist(), 2] for ids in found] == expected[side]
    ids = target.encode([Source(line, language=codes[1]) for line in LINES])
    assert target.decode([[START_ID, *line, END_ID] for line in ids]) == target.decode(source.encode(LINES))


@pytest.mark.slow
def test_2000_lines_of_six_scripts_have_the_ids_of_transformers(models):
    theirs, tokenizer, _, ours = models
    order, lines = their_ids(theirs, tokenizer, ours), mixed_lines(2000)
    for direction in directions_of(tokenizer):
        read = [Source(line, source_language=direction[0], language=direction[1]) for line in lines]
        expected = encoded_by(tokenizer, lines, direction, text_target=lines)
        source, target = ours.tokenizers.source, ours.tokenizers.target
        assert [[*order[ids].tolist(), 2] for ids in source.encode(read)] == expected["input_ids"]
        found = target.encode(target.target_lines(lines, read))
        assert [[*order[ids].tolist(), 2] for ids in found] == expected["labels"]


def test_spans_are_the_character_offsets_of_the_pieces(models):
    source = models[3].tokenizers.source
    for line in map(models[3].source, LINES[:8]):
        pieces, spans = source.pieces(source.encode([line])[0]), source.spans([line])[0]
        assert spans[0] == OUTSIDE and len(pieces) == len(spans)
        assert "".join(line.text[begin:end] for begin, end in spans[1:]).replace(" ", "") == line.text.replace(" ", "")


@torch.no_grad()
def test_scores_are_those_of_transformers_without_the_token_of_the_language(models):
    theirs, tokenizer, _, ours = models
    direction = directions_of(tokenizer)[0]
    encoded = encoded_by(tokenizer, LINES[3], direction, text_target=LINES[0], return_tensors="pt")
    labels = encoded.pop("labels")
    logits = theirs(**encoded, decoder_input_ids=torch.cat([torch.tensor([[2]]), labels[:, :-1]], 1)).logits
    expected = logits.log_softmax(-1).gather(2, labels[:, :, None]).flatten()[1:].sum()
    score, = pair_scores(ours, [(LINES[3], LINES[0])])
    assert score.log_probability == pytest.approx(expected.item(), abs=1e-3)
    assert ours.decoding.max_length == 31 - 3                                   # two `</s>`, the token of the language
    assert score.tokens == labels.numel() - 1                                   # without the given token


def test_a_prefix_follows_the_token_of_the_language(models):
    (translation,), = models[3].translate([Source(LINES[0], prefix="Hund")], beam_size=2, safety_net=False)
    assert translation.text.startswith("Hund")


def test_the_token_of_the_language_counts_in_no_length(models):
    for precision in ("fp32", "int8"):
        ours = Translator.load(models[2] / "ours", "cpu", precision)
        for length in (1, 3):
            for one, in ours.translate(LINES[:5], min_length=length, max_length=length, beam_size=3, safety_net=False):
                assert one.tokens == 1 + length + 1                             # the language, the pieces, `</s>`


def test_a_test_set_in_files_is_translated_from_the_language_that_is_named(models, tmp_path):
    (tmp_path / "text").write_text("ein Hund läuft im Garten\n")
    for code in ("de", "ru"):
        test, = read_tests([models[2] / "ours"], tmp_path / "text", [tmp_path / "text"], "en", source_language=code)
        read = []

        def load(path, read=read):
            translator = Translator.load(path, "cpu", "fp32")
            return replace(translator, engine=Recording(translator.engine, read))

        translate_tests([models[2] / "ours"], [test], load)
        first, = {models[3].tokenizers.source.pieces(ids[:1].tolist())[0] for ids in read}
        assert is_same_language(first.strip("<>"), code)


class Recording:
    """An engine that appends the sources that it reads to a list."""

    def __init__(self, engine, read):
        self.engine, self.read = engine, read

    def __getattr__(self, name):
        return getattr(self.engine, name)

    whole_search = None

    def start(self, source, *arguments):
        self.read.append(source)
        return self.engine.start(source, *arguments)


def test_int8_gives_similar_translations(models):
    _, _, directory, ours = models
    int8 = Translator.load(directory / "ours", "cpu", "int8")
    assert int8.precision == "int8"
    for beam_size in (1, 3):
        found = int8.translate(LINES[:5], beam_size=beam_size, safety_net=False)
        expected = ours.translate(LINES[:5], beam_size=beam_size, safety_net=False)
        assert sum(a[0].text == b[0].text for a, b in zip(found, expected, strict=True)) >= 2


def test_training_text_begins_with_the_tokens_of_its_languages(models, tmp_path):
    theirs, tokenizer, _, ours = models
    source, target = directions_of(tokenizer)[0]
    for name, lines in (("t.x", LINES[:5]), ("t.y", LINES[3:8])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files = "{source: t.x, target: t.y}"
    recipe = parse_recipe(f"""
name: small
languages: {{source: {source[:2]}, target: {target[:2]}}}
data: {{train: [{files}], valid: {files}}}
""", tmp_path / "recipe.yaml")
    block, = encoded_blocks(read_pairs(recipe, recipe.data.train[0]), recipe, ours.tokenizers)
    order = their_ids(theirs, tokenizer, ours)
    expected = encoded_by(tokenizer, LINES[:5], (source, target), text_target=LINES[3:8])
    for found, side in zip(block.ids, ("input_ids", "labels"), strict=True):
        assert order[found].tolist() == [index for ids in expected[side] for index in ids]
    measured = Validation(recipe, ours.tokenizers).corpus                       # its loss is that of the same text
    for found, side in zip(block.ids, (measured.source, measured.target), strict=True):
        assert side.ids[:].tolist() == found.tolist()


def test_labels_of_guided_alignment_belong_to_the_pieces_behind_the_tokens_of_the_languages(models):
    tokenizers, languages = models[3].tokenizers, models[3].languages

    class Aligner:
        def weights(self, source, target):
            return np.eye(len(source))

    line = Source(LINES[0], language=languages.target, source_language=languages.source)
    links, counts = _links_of_block(Aligner(), tokenizers, line, [(line.text, line.text)])
    (ids,), number = tokenizers.source.encode([line]), len(links)
    linked = {(int(target), int(source)) for target, source, _ in links}
    assert {source for target, source in linked if target == 0} == {len(ids)}   # the token is no word: `</s>`
    assert {(piece, piece) for piece in range(1, len(ids))} < linked            # the same text, piece by piece
    assert all(source for _, source in linked) and counts.tolist() == [number]


def test_documents_get_codes_of_bcp_47_instead_of_those_of_the_model(models, tmp_path):
    (tmp_path / "page.html").write_text('<html lang="en"><p>the dog</p></html>')
    found = translate_document(models[3], tmp_path / "page.html").decode()
    assert 'lang="de' in found and "_" not in found.split(">")[0]


def test_the_characters_of_unknown_training_text_stay_unknown(models, tmp_path):
    text = f"""
name: small
languages: {{source: {models[3].languages.source}, target: {models[3].languages.target}}}
data: {{train: [{{source: t.x, target: t.y}}], valid: {{source: t.x, target: t.y}},
  cleaning: {{max_pieces: 99}}}}
"""
    started = f"{text}training: {{start_from: {models[2] / 'ours'}}}"
    for recipe, known in ((text, {"source": set(), "target": set()}), (started, {})):
        assert known_characters(parse_recipe(recipe, tmp_path / "recipe.yaml")) == known


def test_embeddings_are_frozen_with_their_norms(models):
    model = build(read_stored_model(models[2] / "ours"))
    freeze(model, ["embeddings", "encoder"])
    trained = [name for name, weight in model.named_parameters() if weight.requires_grad]
    assert trained and all(name.startswith(("decoder", "output_bias")) for name in trained)


# Back to transformers


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory):
    """Directory of the export of the imported model."""
    directory = tmp_path_factory.mktemp("exported")
    (directory / "lines").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    parity = export_model(models[2] / "ours", directory / "theirs", directory / "lines")
    assert parity.lines == parity.same == len(LINES) and parity.worst_score < 1e-3
    return directory / "theirs"


def test_an_export_has_the_weights_and_the_ids_of_the_original(models, exported):
    theirs, tokenizer, _, _ = models
    again = type(theirs).from_pretrained(exported)
    found, expected = again.state_dict(), theirs.state_dict()
    if not theirs.config.tie_word_embeddings:                   # a matrix that is not used
        del expected["model.shared.weight"]
    for name, weight in expected.items():
        unused = 2 if name.endswith("embed_positions.weight") else 0    # rows before the first position
        assert torch.equal(found[name][unused:], weight[unused:]), name
    same = type(tokenizer).from_pretrained(exported)
    for direction in directions_of(tokenizer):
        for lines in (LINES, ["☃☃ läuft ☃", "ＨＵＮＤ"]):
            assert (encoded_by(same, lines, direction, text_target=lines).data ==
                    encoded_by(tokenizer, lines, direction, text_target=lines).data)


def test_an_imported_export_has_the_same_weights(models, exported, tmp_path):
    import_model(str(exported), tmp_path / "again")
    first, second = (read_stored_model(path) for path in (models[2] / "ours", tmp_path / "again"))
    assert first.tokenizers.source.ids == second.tokenizers.source.ids
    for name, weight in first.weights.items():
        assert np.array_equal(second.weights[name], weight), name


def test_small100_reads_the_token_of_the_target_before_the_source(tmp_path):
    theirs, tokenizer = make(tmp_path / "theirs", **KINDS["M2M-100, SiLU"])
    tokenizer_of_class(tmp_path / "theirs", "SMALL100Tokenizer")
    import_model(str(tmp_path / "theirs"), tmp_path / "ours", "en", "de")
    ours = Translator.load(tmp_path / "ours", "cpu", "fp32")
    order = their_ids(theirs, tokenizer, ours).tolist()
    assert len(ours.tokenizers.source.languages) == 100 and order[ours.tokenizers.source.language_id("de")] != 3
    for code in ("de", "zh"):
        # The tokenizer of M2M-100 writes the same, if the target is given as the source.
        encoded = encoded_by(tokenizer, SENTENCES[:20], (code, code), return_tensors="pt", padding=True)
        output = theirs.generate(
            **encoded, num_beams=5, max_length=31, early_stopping=True, length_penalty=1.0,
            bad_words_ids=[[order[index]] for index in ours.tokenizers.target.never_generated_ids])[:, 1:].tolist()
        found = ours.into(code).translate(SENTENCES[:20], beam_size=5, length_penalty=1.0, safety_net=False)
        texts = [ours.tokenizers.target.decode([[order.index(index) for index in row[: row.index(2)]]])[0].strip()
                 if 2 in row else None for row in output]
        equal = [best.text == text for (best, *_), text in zip(found, texts, strict=True) if text is not None]
        assert len(equal) > 5 and all(equal)


# Files of strangers


@pytest.fixture(scope="module")
def nllb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nllb") / "theirs"
    make(folder)
    return folder


def test_languages_have_the_codes_of_the_model_or_others(nllb, tmp_path, capsys):
    arguments = ["import", str(nllb), "--output"]
    assert main([*arguments, str(tmp_path / "a"), "--source-language", "de", "--target-language", "ru"]) == 0
    assert "deu_Latn to rus_Cyrl" in capsys.readouterr().err
    ours = Translator.load(tmp_path / "a", "cpu", "fp32")
    assert ours.tokenizers.source.pieces(ours.encode(["ein Hund"])[0])[0] == ">>deu_Latn<<"
    assert ours.into("el").languages.target == "ell_Grek"
    assert main([*arguments, str(tmp_path / "b"), "--target-language", "fr"]) == 2
    assert "no token for the language 'fr'" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "b"), "--target-language", "zh-Hant"]) == 0


@pytest.fixture(scope="module")
def mbart(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mbart") / "theirs"
    make(folder, kind="mbart50", unused=-1)
    return folder


def changed_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def without_weight(folder, name="model.decoder.layers.0.fc1.weight"):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors")


def tokenizer_of_class(folder, name):
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))


def other_sentencepiece(folder):
    (folder / "sentencepiece.bpe.model").write_bytes(b"no model")


def moved_token(folder):
    path = folder / "tokenizer.json"
    read = json.loads(path.read_text())
    read["added_tokens"][-1]["id"] = 17
    path.write_text(json.dumps(read))


@pytest.mark.parametrize(("change", "told"), [
    (lambda folder: changed_config(folder, d_model=44), "has the shape .* instead of"),
    (lambda folder: changed_config(folder, vocab_size=270), "not that of the model|instead of"),
    (lambda folder: changed_config(folder, vocab_size=10**9), "pieces"),
    (lambda folder: changed_config(folder, vocab_size="many"), "vocab_size"),
    (lambda folder: changed_config(folder, decoder_start_token_id=0), "does not start with </s>"),
    (lambda folder: changed_config(folder, auto_map={"AutoModel": "evil.Model"}), "not executed"),
    (lambda folder: changed_config(folder, model_type="bart"), "model_type: bart"),
    (without_weight, r"model\.decoder\.layers\.0\.fc1\.weight is missing"),
    (other_sentencepiece, "not a sentencepiece model"),
    (lambda folder: (folder / "sentencepiece.bpe.model").unlink(), "tokenizer.json is not enough"),
    (moved_token, "another"),
    (lambda folder: tokenizer_of_class(folder, "OtherTokenizer"), "its tokenizer is OtherTokenizer"),
])
def test_files_that_do_not_fit_together_are_refused_with_what_and_where(nllb, tmp_path, change, told):
    folder = tmp_path / "theirs"
    shutil.copytree(nllb, folder)
    change(folder)
    with pytest.raises(FormatError, match=told):
        import_model(str(folder), tmp_path / "ours", "eng_Latn", "deu_Latn")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(("change", "told"), [
    (lambda folder: without_weight(folder, "model.encoder.embed_positions.weight"),
     r"model\.encoder\.embed_positions\.weight is missing"),
    (lambda folder: without_weight(folder, "model.decoder.layernorm_embedding.bias"),
     r"model\.decoder\.layernorm_embedding\.bias is missing"),
    (lambda folder: changed_config(folder, max_position_embeddings=99), "embed_positions.* has the shape"),
    (lambda folder: changed_config(folder, decoder_start_token_id=17), "does not start with </s>"),
    (lambda folder: tokenizer_of_class(folder, "MBartTokenizer"), "its tokenizer is MBartTokenizer"),
])
def test_files_of_mbart_that_do_not_fit_together_are_refused(mbart, tmp_path, change, told):
    folder = tmp_path / "theirs"
    shutil.copytree(mbart, folder)
    change(folder)
    with pytest.raises(FormatError, match=told):
        import_model(str(folder), tmp_path / "ours", "en_XX", "de_DE")
    assert not (tmp_path / "ours").exists()
