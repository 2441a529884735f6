"""Untrusted models: for any file contents, loading succeeds or raises an error that names the file."""

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sentencepiece import sentencepiece_model_pb2

from seq2seq.errors import CheckpointError, UserError
from seq2seq.inference.load_model import read_model, stored_weights
from seq2seq.model import SkipInitialization, build_model
from seq2seq.recipe import parse_recipe, validate_model
from seq2seq.storage import checkpoints
from seq2seq.storage.checkpoints import save_bundle
from seq2seq.storage.directories import with_checksum
from seq2seq.tokenizers.tokenizer import train_tokenizers
from seq2seq.translation.translator import Translator

RECIPE = """\
name: tiny
languages: {source: de, target: en}
data: {train: [{source: a, target: b}], valid: {source: a, target: b}, cleaning: {max_pieces: 29}}
tokenizer: {vocab_size: 277}
model: {d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31}
decoding: {beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3}
"""
FILES = ("model.safetensors", "recipe.yaml", "tokenizer.model", "metadata.json")


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    recipe = parse_recipe(RECIPE, "recipe.yaml")
    tokenizers = train_tokenizers([("ein Hund läuft", "a dog runs")] * 2, recipe.tokenizer, 1)
    torch.manual_seed(1)
    weights = stored_weights(build_model(recipe.model, 277, 277))
    return save_bundle(tmp_path_factory.mktemp("model") / "bundle", weights, RECIPE, tokenizers.files(), {})


@pytest.fixture
def bundle(sound, tmp_path):
    return shutil.copytree(sound, tmp_path / "bundle")


def sign(bundle):
    """Write correct checksums into the metadata, as an attacker would."""
    path = bundle / "metadata.json"
    metadata = json.loads(path.read_text())
    for name in FILES[:-1]:
        if (bundle / name).exists():
            metadata["sha256"][name] = hashlib.sha256((bundle / name).read_bytes()).hexdigest()
    path.write_text(json.dumps(with_checksum(metadata)))


def change(bundle, name, old, new):
    path = bundle / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    sign(bundle)


@pytest.mark.parametrize("old, new", [
    ("d_model: 12", "d_model: 14"), ("d_model: 12", "d_model: 60000"), ("d_model: 12", "d_model: 1200000000000"),
    ("max_positions: 31", "max_positions: 8000000"), ("feed_forward: 7", "feed_forward: 999999"),
    ("num_heads: 2", "num_heads: 300"), ("beam_size: 2", "beam_size: 2, batch_tokens: 10000000000"),
    ("beam_size: 2", "beam_size: 2, max_length: 1" + "0" * 400), ("beam_size: 2", "beam_size: 100000000"),
    ("encoder_layers: 1", "encoder_layers: 2"), ("encoder_layers: 1", "encoder_layers: 999999999"),
    ("model: {", "model: {base: ../secret.yaml, "), ("feed_forward: 7", "type: rnn"),
], ids=["another width", "a great width", "a width without end", "positions without end", "a great feed-forward width",
        "heads without end", "batches without end", "lengths without end", "a beam without end", "another depth",
        "a depth without end", "another file", "another architecture"])
def test_a_recipe_that_does_not_match_the_weights_is_refused_before_they_are_read(bundle, monkeypatch, old, new):
    (bundle.parent / "secret.yaml").write_text("model: {d_model: 12}\n")
    change(bundle, "recipe.yaml", old, new)
    monkeypatch.setattr(checkpoints, "read_weights", None)
    with pytest.raises(CheckpointError):
        read_model(bundle)


def test_a_pointer_with_other_positions_than_its_tokenizer_is_refused(tmp_path):
    text = RECIPE.replace("num_heads: 2, feed_forward: 7", "type: pointer")
    text = text.replace("{vocab_size: 277}", "{type: words}") + "training: {label_smoothing: 0}\n"
    recipe = parse_recipe(text, "recipe.yaml")
    tokenizers = train_tokenizers([("b a", "2 1")], recipe.tokenizer, 1, target_positions=30)
    weights = stored_weights(build_model(recipe.model, tokenizers.source.vocab_size, tokenizers.target.vocab_size))
    bundle = save_bundle(tmp_path / "bundle", weights, text, tokenizers.files(), {})
    assert read_model(bundle)[0].max_positions == 31
    change(bundle, "recipe.yaml", "max_positions: 31", "max_positions: 32")
    with pytest.raises(CheckpointError):
        read_model(bundle)


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_names_that_no_file_can_have_are_refused(bundle, name):
    metadata = json.loads((bundle / "metadata.json").read_text())
    metadata["sha256"][name] = "0" * 64
    (bundle / "metadata.json").write_text(json.dumps(with_checksum(metadata)))
    with pytest.raises(CheckpointError):
        read_model(bundle)


def test_endlessly_nested_metadata_count_as_damaged(bundle):
    (bundle / "metadata.json").write_text("[" * 100_000)
    with pytest.raises(CheckpointError):
        read_model(bundle)


@pytest.mark.parametrize("text", ["piece", "unknown"])
def test_a_tokenizer_whose_text_is_not_utf8_is_refused(bundle, text):
    model = sentencepiece_model_pb2.ModelProto.FromString((bundle / "tokenizer.model").read_bytes())
    if text == "piece":
        model.pieces[-1].piece = "xyxyx"
    else:
        model.trainer_spec.unk_surface = "xyxyx"
    contents = model.SerializeToString()
    assert contents.count(b"xyxyx") == 1
    (bundle / "tokenizer.model").write_bytes(contents.replace(b"xyxyx", b"\xff\xfe\xff\xfe\xff"))
    sign(bundle)
    with pytest.raises(CheckpointError, match="tokenizer.model"):
        read_model(bundle)


@pytest.mark.parametrize("place", ["/dev/null", "pipe"])
def test_a_path_that_is_not_a_directory_is_not_a_model(tmp_path, place):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(CheckpointError):
        read_model(tmp_path / place)


def test_a_bundle_may_itself_be_a_link(bundle):
    (bundle.parent / "latest").symlink_to(bundle)
    read_model(bundle.parent / "latest")


def mutate(contents: bytes, draw: random.Random) -> bytes:
    kind = draw.randrange(6)
    place, end = sorted((draw.randrange(len(contents) + 1), draw.randrange(len(contents) + 1)))
    if kind == 0:
        return contents[:place]                                                 # cut short
    if kind == 1:                                                               # a bit
        place = draw.randrange(len(contents))
        return contents[:place] + bytes([contents[place] ^ 1 << draw.randrange(8)]) + contents[place + 1:]
    if kind == 2:
        return contents[:place] + draw.randbytes(draw.randrange(1, 40)) + contents[place:]
    if kind == 3:
        return contents[:place] + contents[end:]                                # a hole
    if kind == 4:                                                               # another number
        digits = [at for at, byte in enumerate(contents) if chr(byte).isdigit()] or [0]
        at = draw.choice(digits)
        return contents[:at] + str(draw.choice([0, 7, 10**6, 10**12, -1])).encode() + contents[at + 1:]
    return draw.choice([b"", b"\0" * 1000, b"{}", contents * 2])


def with_mutations(count):
    """Decorator that runs a test with random mutations of the files of a bundle."""
    def decorate(test):
        fixed = settings(max_examples=count, deadline=None, derandomize=True,
                         suppress_health_check=[HealthCheck.function_scoped_fixture])
        return fixed(given(seed=st.integers(0, 2**32), name=st.sampled_from(FILES), signed=st.booleans())(test))

    return decorate


def check_mutation(sound, tmp_path, seed, name, signed):
    bundle = tmp_path / "bundle"
    shutil.rmtree(bundle, ignore_errors=True)
    shutil.copytree(sound, bundle)
    path = bundle / name
    before = path.read_bytes()
    path.write_bytes(mutate(before, random.Random(seed)))
    changed = path.read_bytes() != before
    if signed and name != "metadata.json":
        sign(bundle)
    try:
        translator = Translator.load(bundle, "cpu", "fp32")
        found = translator.translate(["ein Hund läuft"])
    except CheckpointError as error:
        assert "bundle" in str(error) or signed and "scores are not numbers" in str(error)
        assert signed or name == "metadata.json" or name in str(error)
    except UserError:
        assert signed                                                           # a search that its recipe forbids
    else:
        assert isinstance(found[0][0].text, str)
        assert signed or name == "metadata.json" or not changed


@with_mutations(25)
def test_a_mutated_bundle_loads_or_is_refused_with_its_name_in_the_error(sound, tmp_path, seed, name, signed):
    check_mutation(sound, tmp_path, seed, name, signed)


@pytest.mark.slow
@with_mutations(500)
def test_any_mutated_bundle_loads_or_is_refused_with_its_name_in_the_error(sound, tmp_path, seed, name, signed):
    check_mutation(sound, tmp_path, seed, name, signed)


# Loading draws nothing


MODELS: dict[str, dict[str, str | int]] = {
    "transformer": {"num_heads": 2, "positions": "learned"}, "additive": {"num_heads": 2, "score": "additive"},
    "rnn": {"type": "rnn", "num_heads": 2}, "lstm": {"type": "rnn", "num_heads": 2, "cell": "lstm"},
    "pointer": {"type": "pointer"}, "language model": {"type": "language_model", "num_heads": 2}}


@pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)
def test_loading_a_model_draws_no_random_numbers(options):
    section = validate_model({"d_model": 12, **options})
    before = torch.random.get_rng_state()
    with SkipInitialization():
        loaded = build_model(section, 277, 277)
    assert torch.equal(torch.random.get_rng_state(), before)
    drawn = build_model(section, 277, 277)
    assert not torch.equal(torch.random.get_rng_state(), before)
    for (name, found), (_, expected) in zip(loaded.named_buffers(), drawn.named_buffers(), strict=True):
        assert torch.equal(found, expected), f"{name} is computed, not loaded"


@pytest.mark.slow
def test_building_a_model_on_the_meta_device_does_not_import_the_compiler():
    """Runs in a new process, because the package may already be imported in this one; importing it takes a second."""
    program = f"""
import sys, torch
from seq2seq.model import SkipInitialization, build_model
from seq2seq.recipe import validate_model
for options in {list(MODELS.values())}:
    with torch.device("meta"), SkipInitialization():
        build_model(validate_model({{"d_model": 12, **options}}), 11, 11)
assert not {{"torch._dynamo", "sympy"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
