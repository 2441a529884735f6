"""Imported T5, mT5 and MADLAD-400 models give the same results as in transformers."""

import json
import shutil

import numpy as np
import pytest
import torch

from seq2seq.data.batching import EncodedCorpus, EncodedSide, gather
from seq2seq.errors import FormatError
from seq2seq.inference.int8 import NativeEngine
from seq2seq.inference.load_model import build, read_stored_model
from seq2seq.interop.huggingface_export import export_model
from seq2seq.interop.huggingface_import import import_model
from seq2seq.interop.huggingface_weights import architecture_of, weights_from_huggingface
from seq2seq.storage.checkpoints import stored_recipe
from seq2seq.tokenizers.source import Source
from seq2seq.translation.scoring import pair_scores
from seq2seq.translation.translator import Translator
from tests.fairseq_models import LINES, mixed_lines
from tests.t5_models import LANGUAGE_TOKENS, make

pytest.importorskip("transformers")

KINDS = {
    "T5 1.0": {"scaled": True, "projection": "relu", "head_size": 4, "seed": 1, "end": 4.0},
    "T5 1.1": {"own_output": True, "d_model": 26, "heads": 2, "layers": (3, 1), "feed_forward": 31, "seed": 2,
               "end": 3.0},
    "mT5": {"architecture": "MT5", "d_model": 29, "heads": 7, "layers": (2, 1), "seed": 3, "end": 4.0},
    "MADLAD-400": {"kind": "madlad", "languages": True, "own_output": True, "unused": 0, "seed": 2, "end": 2.0},
}
SENTENCES = [" ".join(LINES[(3 * number + step) % len(LINES)] for step in range(1 + number % 3))
             for number in range(200)]


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.replace(" ", "_"))
def models(request, tmp_path_factory):
    """Model and tokenizer in transformers, directory of both, and a translator of the imported model."""
    directory = tmp_path_factory.mktemp("models")
    theirs, tokenizer = make(directory / "theirs", **KINDS[request.param])
    import_model(str(directory / "theirs"), directory / "ours", "en", "de")
    return theirs, tokenizer, directory, Translator.load(directory / "ours", "cpu", "fp32")


def their_ids(theirs, tokenizer, ours):
    """Return the id in transformers of each id of the imported model."""
    ids = []
    for name in ours.tokenizers.target.pieces(range(ours.tokenizers.target.vocab_size)):
        ids.append(int(name.split()[1][:-1]) if name.startswith("<unused ") else tokenizer.convert_tokens_to_ids(name))
    assert sorted(ids) == list(range(theirs.config.vocab_size))
    return torch.tensor(ids)


def prefixed(ours, lines):
    """Return lines as users of transformers write them."""
    return [f"<2de> {line}" if ours.tokenizers.source.languages else line for line in lines]


def test_text_in_six_scripts_has_the_ids_of_transformers(models):
    theirs, tokenizer, _, ours = models
    order, lines = their_ids(theirs, tokenizer, ours), [*LINES, "der  Hund", "ein"]
    if tokenizer.unk_token_id == 2:                             # transformers always gives unknown characters this id
        lines += ["ＨＵＮＤ", "☃", "☃☃ läuft ☃"]
    end = [theirs.config.eos_token_id]
    for code in ours.tokenizers.source.languages or [""]:
        texts = [f"<2{code}> {line}" if code else line for line in lines]
        found = ours.tokenizers.source.encode([Source(line, language=code) for line in lines])
        assert [order[ids].tolist() + end for ids in found] == tokenizer(texts)["input_ids"]
    assert [order[ids].tolist() + end for ids in ours.tokenizers.target.encode(lines)] == tokenizer(lines)["input_ids"]
    assert len(ours.tokenizers.source.languages) in (0, len(LANGUAGE_TOKENS))


@pytest.mark.slow
def test_2000_lines_of_six_scripts_have_the_ids_of_transformers(models):
    theirs, tokenizer, _, ours = models
    order, end = their_ids(theirs, tokenizer, ours), [theirs.config.eos_token_id]
    lines = [line for line in mixed_lines(2000) if tokenizer.unk_token_id == 2 or 0 not in ours.encode([line])[0]]
    found = ours.tokenizers.target.encode(lines)
    assert [order[ids].tolist() + end for ids in found] == tokenizer(lines)["input_ids"]


def test_logits_and_gradients_equal_those_of_transformers(models):
    theirs, tokenizer, directory, ours = models
    model, order = build(read_stored_model(directory / "ours")), their_ids(theirs, tokenizer, ours)
    sources, targets = [*LINES[:6], SENTENCES[2] * 5], LINES[3:10]                # distances above 128
    labels = tokenizer(targets)["input_ids"]
    longest, pad, start = max(map(len, labels)), theirs.config.pad_token_id, theirs.config.decoder_start_token_id
    real = torch.arange(longest) < torch.tensor([len(ids) for ids in labels])[:, None]
    shifted = torch.tensor([[start, *ids[:-1], *[pad] * (longest - len(ids))] for ids in labels])
    encoded = tokenizer(prefixed(ours, sources), return_tensors="pt", padding=True)
    assert encoded["input_ids"].shape[1] > 130
    # The padding of MADLAD-400, whose mask is all that counts, would otherwise be masked in targets, too.
    expected = theirs(**encoded, decoder_input_ids=shifted,
                      decoder_attention_mask=torch.ones_like(shifted)).logits[real]
    sides = [EncodedSide.from_lists(side) for side in (
        ours.encode(list(map(ours.source, sources))), ours.tokenizers.target.encode(targets))]
    batch = gather(EncodedCorpus(*sides), np.arange(len(sources)))
    logits = model.eval()(batch).dense()
    assert expected.std() > 0.3
    torch.testing.assert_close(logits, expected[:, order], rtol=0, atol=1e-4)
    torch.nn.functional.cross_entropy(logits, batch.target_output).backward()
    theirs.zero_grad()
    torch.nn.functional.cross_entropy(expected, torch.tensor([index for ids in labels for index in ids])).backward()
    section, ids = stored_recipe(directory / "ours").model, order.tolist()
    gradients = {name: weight.grad for name, weight in theirs.named_parameters() if weight.grad is not None}
    # The matrix of T5 1.0 is divided by the root of d_model, so its gradient is multiplied by it.
    scale = section.d_model**0.5 if section.scale_embedding else 1.0
    expected = weights_from_huggingface(gradients, architecture_of(theirs.config.to_dict()), section, ids, ids, scale)
    found = {name: weight.grad for name, weight in model.named_parameters()}
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max(), name


def translations_of(models, lines, beam_size):
    """Return the number of compared translations, and their different lengths."""
    theirs, tokenizer, _, ours = models
    order, end = their_ids(theirs, tokenizer, ours), theirs.config.eos_token_id
    output = theirs.generate(
        **tokenizer(prefixed(ours, lines), return_tensors="pt", padding=True), num_beams=beam_size, max_length=31,
        bad_words_ids=[[index] for index in order[ours.tokenizers.target.never_generated_ids].tolist()],
        **({"early_stopping": True, "length_penalty": 1.6} if beam_size > 1 else {}))
    found = [best for best, *_ in ours.translate(lines, beam_size=beam_size, length_penalty=1.6, safety_net=False)]
    compared, lengths = 0, set()
    for translation, row in zip(found, output[:, 1:].tolist(), strict=True):
        if end in row:                                          # at the maximum length, only ours ends with </s>
            ids = [order.tolist().index(index) for index in row[: row.index(end)]]
            assert translation.text == ours.tokenizers.target.decode([ids])[0].strip()
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


@torch.no_grad()
def test_scores_are_those_of_transformers(models):
    theirs, tokenizer, _, ours = models
    labels = tokenizer(LINES[0], return_tensors="pt")["input_ids"]
    start = torch.tensor([[theirs.config.decoder_start_token_id]])
    logits = theirs(**tokenizer(prefixed(ours, LINES[3:4]), return_tensors="pt"),
                    decoder_input_ids=torch.cat([start, labels[:, :-1]], 1)).logits
    expected = logits.log_softmax(-1).gather(2, labels[:, :, None]).sum()
    score, = pair_scores(ours, [(LINES[3], LINES[0])])
    assert score.log_probability == pytest.approx(expected.item(), abs=1e-3)
    assert score.tokens == labels.numel()


def test_the_kernels_compute_the_model_in_fp32_and_in_int8(models):
    _, _, directory, ours = models
    fast = Translator.load(directory / "ours", "cpu", "int8")
    assert fast.precision == "int8" and isinstance(ours.engine, NativeEngine)
    in_int8, in_fp32 = ([one.score for one, in each.translate(SENTENCES[:60], safety_net=False)]
                        for each in (fast, ours))
    assert np.mean(in_int8) == pytest.approx(np.mean(in_fp32), abs=0.1)


# Back to transformers


@pytest.fixture(scope="module")
def exported(models, tmp_path_factory):
    """Directory of the export of the imported model; None for MADLAD-400, whose vocabulary is refused."""
    directory = tmp_path_factory.mktemp("exported")
    (directory / "lines").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    if models[0].config.pad_token_id != 0:
        with pytest.raises(FormatError, match="T5 tokenizer"):
            export_model(models[2] / "ours", directory / "theirs", directory / "lines")
        pytest.skip("T5's tokenizer in transformers cannot have this vocabulary; the export was refused")
    parity = export_model(models[2] / "ours", directory / "theirs", directory / "lines")
    assert parity.lines == parity.same == len(LINES) and parity.worst_score < 1e-3
    return directory / "theirs"


def test_an_export_has_the_weights_and_the_ids_of_the_original(models, exported):
    import transformers

    theirs, tokenizer, _, _ = models
    found, expected = (each.state_dict() for each in (
        transformers.T5ForConditionalGeneration.from_pretrained(exported), theirs))
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        torch.testing.assert_close(found[name], weight, rtol=1e-6, atol=1e-7, msg=name)
    same = transformers.T5Tokenizer.from_pretrained(exported)
    assert same(LINES)["input_ids"] == tokenizer(LINES)["input_ids"]


def test_an_imported_export_has_the_same_weights(models, exported, tmp_path):
    import_model(str(exported), tmp_path / "again", "en", "de")
    first, second = (read_stored_model(path) for path in (models[2] / "ours", tmp_path / "again"))
    assert first.tokenizers.source.ids == second.tokenizers.source.ids
    assert first.recipe.model == second.recipe.model
    for name, weight in first.weights.items():
        np.testing.assert_allclose(second.weights[name], weight, rtol=1e-6, atol=1e-7)


# Files of strangers


@pytest.fixture(scope="module")
def t5(tmp_path_factory):
    folder = tmp_path_factory.mktemp("t5") / "theirs"
    make(folder, own_output=True)
    return folder


def changed_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def changed_weights(folder, change):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def divided(folder, **changes):
    """Divide the weights into two files with an index. changes: entries of the index."""
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    files = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, part in files.items():
        save_file({name: weights[name] for name in part}, folder / file)
    found = {name: file for file, part in files.items() for name in part}
    index = {"weight_map": {name: file for name, file in (found | changes).items() if file}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def test_weights_in_several_files_are_read(t5, tmp_path):
    shutil.copytree(t5, tmp_path / "theirs")
    divided(tmp_path / "theirs")
    for name in ("whole", "parts"):
        import_model(str(t5 if name == "whole" else tmp_path / "theirs"), tmp_path / name, "en", "de")
    whole, parts = (read_stored_model(tmp_path / name).weights for name in ("whole", "parts"))
    assert whole.keys() == parts.keys() and all(np.array_equal(whole[name], parts[name]) for name in whole)


RELATIVE = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"


@pytest.mark.parametrize(("change", "told"), [
    (lambda folder: changed_config(folder, d_kv=6), "has the shape .* instead of"),
    (lambda folder: changed_config(folder, vocab_size=20), "vocab_size"),
    (lambda folder: changed_config(folder, vocab_size=10**9), "pieces"),
    (lambda folder: changed_config(folder, num_heads="many"), "num_heads"),
    (lambda folder: changed_config(folder, relative_attention_num_buckets=64), "relative_attention_num_buckets: 64"),
    (lambda folder: changed_config(folder, layer_norm_epsilon=1e-5), "layer_norm_epsilon"),
    (lambda folder: changed_config(folder, feed_forward_proj="evil-gelu"), "feed_forward_proj: evil-gelu"),
    (lambda folder: changed_config(folder, decoder_start_token_id=9), "start of the decoder"),
    (lambda folder: changed_config(folder, auto_map={"AutoModel": "evil.Model"}), "not executed"),
    (lambda folder: changed_weights(folder, lambda weights: weights.pop(RELATIVE)), "relative_attention_bias.*missing"),
    (lambda folder: divided(folder, **{RELATIVE: "../theirs/model-00001-of-00002.safetensors"}), "not beside it"),
    (lambda folder: divided(folder, **{RELATIVE: "model-00003-of-00002.safetensors"}), "lacks the file model-00003"),
    (lambda folder: divided(folder, **{RELATIVE: ""}), "different weights: encoder.block.0"),
    (lambda folder: divided(folder, **{RELATIVE: 3}), "no weight_map"),
    (lambda folder: changed_weights(folder, lambda weights: weights.pop("shared.weight")), "shared.weight is missing"),
    (lambda folder: changed_weights(folder, lambda weights: weights.update(extra=torch.ones(1))), "weights that T5"),
    (lambda folder: (folder / "spiece.model").write_bytes(b"no model"), "not a sentencepiece model"),
    (lambda folder: (folder / "spiece.model").unlink(), "tokenizer.json is not enough"),
    (lambda folder: (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ByT5Tokenizer"}'),
     "its tokenizer is ByT5Tokenizer"),
])
def test_files_that_do_not_fit_together_are_refused_with_what_and_where(t5, tmp_path, change, told):
    folder = tmp_path / "theirs"
    shutil.copytree(t5, folder)
    change(folder)
    with pytest.raises(FormatError, match=told):
        import_model(str(folder), tmp_path / "ours", "en", "de")
    assert not (tmp_path / "ours").exists()
