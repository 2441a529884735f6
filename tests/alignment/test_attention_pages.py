"""Output and error messages of `seq2seq attention` and `seq2seq align`."""

from __future__ import annotations

import base64
import html
import json
import re
import struct
import sys
import warnings
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from bundle_metadata import change_metadata
from matplotlib.figure import Figure
from random_models import GERMAN, recipe_text, save_random_model, trained_tokenizers

import seq2seq
from seq2seq.alignment.attention_page import page
from seq2seq.alignment.attention_picture import picture
from seq2seq.alignment.shown_maps import AttentionMapSelection, labels, rows_and_columns
from seq2seq.cli import main
from seq2seq.errors import UserError
from seq2seq.evaluation.learning_curves import as_png
from seq2seq.inference.load_model import stored_weights
from seq2seq.model import build_model
from seq2seq.recipe import parse_recipe
from seq2seq.storage.checkpoints import save_bundle
from seq2seq.tokenizers.tokenizer import Tokenizers
from seq2seq.translation.attention_maps import PairAttention, TokenizedLine

RECIPE = recipe_text(
    290, "d_model: 12, encoder_layers: 1, decoder_layers: 2, num_heads: 3, feed_forward: 7, max_positions: 61",
    "beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3", target="zh")
CHINESE = ["一只狗在跑", "一只猫在睡觉", "那只狗在睡觉", "那只猫在家里跑"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def shared_model(tmp_path_factory) -> Path:
    """Bundle of a model with random weights from a fixed seed."""
    tokenizers = trained_tokenizers(RECIPE, zip(GERMAN, CHINESE, strict=True))
    return save_random_model(tmp_path_factory.mktemp("models") / "model", RECIPE, tokenizers, seed=1)


@pytest.fixture
def model(shared_model, tmp_path, monkeypatch) -> Path:
    """Copy of the bundle in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    bundle = tmp_path / "model"
    bundle.mkdir()
    for path in shared_model.iterdir():
        (bundle / path.name).write_bytes(path.read_bytes())
    return bundle


@pytest.fixture
def run(model, capsys) -> Run:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


def write(name: str, lines: list[str]) -> str:
    Path(name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return name


class Parsed(HTMLParser):
    """A page's elements with their attributes, its text outside scripts, and its JSON data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text, self.data, self._inside = "", "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self._inside = "data" if ("id", "data") in attributes else tag

    def handle_endtag(self, tag):
        self._inside = ""

    def handle_data(self, data):
        if self._inside == "data":
            self.data += data
        elif self._inside not in ("script", "style"):
            self.text += data


def test_the_page_is_one_file_that_loads_nothing_from_the_network(run):
    code, _, err = run("attention", "model", "--source", "ein Hund schläft", "--output", "page.html")
    assert code == 0 and "page.html" in err
    text = Path("page.html").read_text(encoding="utf-8")
    assert "{{" not in text
    # The weights are Base64, which can contain two slashes before a letter.
    without_weights = re.sub(r"[A-Za-z0-9+/=]{40,}", "", text.replace("/* ", ""))
    assert not re.search(r"https?:|//[a-z]|@import|url\(", without_weights)
    parsed = Parsed(text)
    assert not any({"src", "href", "srcset", "action"} & attributes.keys() for _, attributes in parsed.elements)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in parsed.elements}
    policy = next(attributes["content"] for _, attributes in parsed.elements
                  if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_both_texts_are_escaped_in_the_page(run):
    source, target = '</script><script>alert("x")</script>', "<b>'猫' & {{data}}</b>"
    assert run("attention", "model", "--source", source, "--target", target, "--output", "page.html")[0] == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert html.escape(source) in text and html.escape(target) in text
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.elements].count("script") == 2, "one element for the data, one for the program"
    assert "b" not in [tag for tag, _ in parsed.elements]
    sides = json.loads(parsed.data)["sides"]
    assert (sides["source"]["text"], sides["target"]["text"]) == (source, target)
    assert (sides["source"]["language"], sides["target"]["language"]) == ("de", "zh")


def test_the_page_contains_every_weight(run):
    assert run("attention", "model", "--source", "der Hund", "--target", "狗在跑", "--output", "page.html",
               "--layer", "1", "--head", "all")[0] == 0
    data = json.loads(Parsed(Path("page.html").read_text(encoding="utf-8")).data)
    assert data["first"] == {"kind": "cross", "layer": 1, "head": "all"}
    source, target = (len(data["sides"][side]["pieces"]) + 1 for side in ("source", "target"))
    shapes = {kind: tuple(maps["shape"]) for kind, maps in data["maps"].items()}
    assert shapes == {"cross": (2, 3, target, source), "encoder": (1, 3, source, source),
                      "decoder": (2, 3, target, target)}
    for maps in data["maps"].values():
        weights = np.frombuffer(base64.b64decode(maps["weights"]), "<u2").reshape(maps["shape"]) / 65535
        np.testing.assert_allclose(weights.sum(-1), 1, atol=source / 65535 + target / 65535)


def test_weights_above_one_are_stored_with_their_scale():
    maps = np.array([[[[0.0, 2.5], [1.25, 0.5]]]], np.float32)
    pair = PairAttention(TokenizedLine("a", ["▁a"], [(0, 1)]), TokenizedLine("b", ["▁b"], [(0, 1)]), {"cross": maps})
    text = page(pair, ("de", "en"), "model", False, AttentionMapSelection("cross", 1, 1))
    stored = json.loads(Parsed(text).data)["maps"]["cross"]
    weights = np.frombuffer(base64.b64decode(stored["weights"]), "<u2") / 65535 * stored["largest"]
    np.testing.assert_allclose(weights, [0, 2.5, 1.25, 0.5], atol=1e-4)


@pytest.mark.slow
def test_without_target_the_translation_of_the_model_is_shown(run):
    assert run("translate", "model", write("one.de", ["ein Hund"]), "--precision", "fp32")[0] == 0
    code, _, err = run("attention", "model", "--source", " ein Hund ", "--output", "page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    assert code == 0 and "translated by the model" in text
    translation = json.loads(Parsed(text).data)["sides"]["target"]["text"]
    assert err.splitlines()[0] == translation


@pytest.mark.parametrize(("arguments", "maps"), [
    (("--layer", "all"), 2), pytest.param(("--head", "all"), 4, marks=pytest.mark.slow),
    pytest.param(("--kind", "decoder", "--head", "2", "--layer", "1"), 1, marks=pytest.mark.slow)])
def test_a_picture_is_a_png_of_the_selected_maps(run, monkeypatch, arguments, maps):
    calls = []
    original = AttentionMapSelection.maps
    monkeypatch.setattr(AttentionMapSelection, "maps",
                        lambda selection, pair: calls.append(original(selection, pair)) or calls[-1])
    code, _, err = run("attention", "model", "--source", "ein Hund", "--target", "a dog", "--output", "dog.png",
                       *arguments)
    assert code == 0, err
    image = Path("dog.png").read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert all(side > 150 for side in struct.unpack(">II", image[16:24]))
    assert len(calls[-1]) == maps


PRIVATE = "\U0010fffd"
"""A character of a private use area, which no font has."""


def pair_with(maps):
    """Return a pair of two-word lines with these cross-attention maps."""
    line = TokenizedLine("a b", ["▁a", "▁b"], [(0, 1), (1, 3)])
    return PairAttention(line, line, {"cross": maps})


def draw(monkeypatch, pair, selection, text="a b"):
    """Draw a picture and return its matplotlib figure."""
    figures = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *arguments, **options: (
        figures.append(self), original(self, *arguments, **options | {"dpi": 20})))
    assert picture(pair, text, selection).startswith(b"\x89PNG")
    return figures[0]


def test_characters_without_a_font_cause_one_warning_and_none_of_matplotlib(monkeypatch, capsys, recwarn):
    pair = pair_with(np.full((1, 1, 3, 3), 1 / 3))
    draw(monkeypatch, pair, AttentionMapSelection("cross", 1, 1), text="äß")
    assert capsys.readouterr().err == ""
    draw(monkeypatch, pair, AttentionMapSelection("cross", 1, 1), text=f"a {PRIVATE}\U0010fffc")
    warning = capsys.readouterr().err
    assert not recwarn.list and f"\U0010fffc {PRIVATE}" in warning and warning.count("\n") == 1


def test_other_warnings_of_matplotlib_are_shown():
    figure = Figure()
    figure.savefig = lambda *arguments, **options: warnings.warn("one", stacklevel=1)
    with pytest.warns(UserWarning, match="one"):
        as_png(figure, 20)


def test_each_layer_is_a_row_of_the_picture(monkeypatch):
    maps = np.random.default_rng(1).random((2, 4, 3, 3))
    figure = draw(monkeypatch, pair_with(maps), AttentionMapSelection("cross", "all", "all"))
    rows: dict[int, set[str]] = {}
    for axes in figure.axes[:-1]:                                               # the last one is the colour scale
        rows.setdefault(axes.get_subplotspec().rowspan.start, set()).add(axes.get_xlabel().split(",")[0])
    assert rows == {0: {"layer 1"}, 1: {"layer 2"}}


@pytest.mark.parametrize(("weights", "limits", "label"), [
    (np.full((1, 1, 3, 3), 1 / 3), (0, 2 / 3), "weight, 0.3333 everywhere"),
    (np.linspace(0.31, 0.35, 9).reshape(1, 1, 3, 3), (0.31, 0.35), "weight, 0.3100 to 0.3500"),
])
def test_the_colour_scale_spans_the_weights_of_the_map(monkeypatch, weights, limits, label):
    figure = draw(monkeypatch, pair_with(weights), AttentionMapSelection("cross", 1, 1))
    plot, scale = figure.axes
    assert plot.images[0].get_clim() == pytest.approx(limits) and scale.get_ylabel() == label


def test_pieces_have_names_for_screen_readers():
    spans = [(0, 0), (0, 1), (1, 1), (1, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    line = TokenizedLine("a龘<\t b", ["▁", "a", "<0xE9>", "<0xBE>", "<0x98>", "<0x3C>", "<0x09>", "▁b"], spans)
    pieces = labels(line)
    assert [label.text for label in pieces] == ["▁", "a", "E9", "BE", "98", "<", "09", "▁b"]
    assert [label.name for label in pieces] == ["space", "a", "byte E9 of 龘", "byte BE of 龘", "byte 98 of 龘",
                                                "byte 3C of <", "byte 09", "b"]


def test_decoder_columns_are_the_input_pieces_and_rows_the_predicted_pieces():
    line = TokenizedLine("a b", ["▁a", "▁b"], [(0, 1), (1, 3)])
    rows, columns = rows_and_columns(PairAttention(line, line, {}), "decoder")
    assert [row.text for row in rows] == ["▁a", "▁b", "</s>"]
    assert [column.text for column in columns] == ["<s>", "▁a", "▁b"]


LANGUAGE_MODEL = """\
name: text
languages: {target: de}
data: {train: [{text: train.de}], valid: {text: valid.de}}
tokenizer: {vocab_size: 290}
model: {type: language_model, d_model: 12, decoder_layers: 2, num_heads: 3, feed_forward: 7}
training: {best_metric: loss}
"""


def test_a_language_model_has_only_decoder_attention(run, model):
    recipe = parse_recipe(LANGUAGE_MODEL, "recipe.yaml", check_files=False)
    files = {"tokenizer.model": (model / "tokenizer.model").read_bytes()}
    size = Tokenizers.from_files(files).target.vocab_size
    save_bundle(Path("text"), stored_weights(build_model(recipe.model, size, size)), LANGUAGE_MODEL, files, {})
    code, _, err = run("attention", "text", "--source", "ein Hund", "--output", "page.html")
    assert code == 0, err
    data = json.loads(Parsed(Path("page.html").read_text(encoding="utf-8")).data)
    assert data["maps"].keys() == {"decoder"} and data["first"] == {"kind": "decoder", "layer": 2, "head": "mean"}
    assert data["sides"]["target"]["text"] == "ein Hund"
    for arguments, message in ((["--kind", "cross"], "this model has no cross attention; it has decoder."),
                               (["--target", "a dog"], "reads one text; leave the target out.")):
        code, _, err = run("attention", "text", "--source", "ein Hund", "--output", "other.html", *arguments)
        assert code == 2 and message in err
    code, _, err = run("align", "text", write("s", ["a"]), write("t", ["b"]))
    assert code == 2 and "this model is a language model" in err


@pytest.mark.parametrize(("arguments", "message"), [
    (("--output", "page.pdf"), "--output page.pdf: the name must end in .html for a page or in .png"),
    (("--output", "page.html", "--layer", "3"), "layer 3: the cross attention of this model has layers 1 to 2."),
    (("--output", "page.html", "--target", "x" * 70), "Give a shorter sentence."),
    *(pytest.param(arguments, message, marks=pytest.mark.slow) for arguments, message in (
        (("--output", "page.html", "--layer", "0"), "--layer 0: expected a number of at least 1, or all."),
        (("--output", "page.html", "--head", "4"),
         "head 4: each layer of this model has heads 1 to 3. Choose one, or mean."),
        (("--output", "page.html", "--head", "best"), "--head best: expected a number of at least 1, or mean, or all."),
        (("--output", "page.html", "--layer", "2", "--kind", "encoder"), "has only layer 1."),
        (("--output", "page.html", "--source", "  "), "--source is empty: give one sentence."),
        (("--output", "page.html", "--target", "a\nb"), "--target has several lines: give one sentence."),
        (("--output", "nowhere/page.html"), "nowhere/page.html cannot be written"))),
])
def test_invalid_arguments_of_attention_are_refused(run, arguments, message):
    code, out, err = run("attention", "model", "--source", "ein Hund", *arguments)
    assert code == 2 and out == "" and message in err
    assert not [path for path in Path().iterdir() if path.suffix in (".html", ".pdf", ".png")]


def test_python_gets_the_figure_of_the_command(run, tmp_path):
    assert run("attention", "model", "--source", "ein Hund schläft", "--output", "command.png", "--layer", 1)[0] == 0
    translator = seq2seq.Translator.load("model", precision="fp32")
    for model in ("model", translator):
        figure = seq2seq.attention_map(model, "ein Hund schläft", layer=1)
        assert as_png(figure, 150) == Path("command.png").read_bytes()
        assert figure._repr_png_().startswith(b"\x89PNG")
    of_heads = seq2seq.attention_map(translator, "ein Hund", "狗在跑", kind="decoder", layer="all", head="all")
    assert len([axes for axes in of_heads.axes if axes.images]) == 2 * 4
    with pytest.raises(UserError, match="layer 7: the cross attention of this model has layers 1 to 2"):
        seq2seq.attention_map(translator, "ein Hund", layer=7)


def test_without_matplotlib_only_the_picture_is_refused(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("attention", "model", "--source", "ein Hund", "--output", "dog.png")
    assert code == 2 and "pip install matplotlib" in err
    assert run("attention", "model", "--source", "ein Hund", "--output", "dog.html")[0] == 0


def test_every_pair_yields_a_line_of_links(run):
    source = write("s", ["ein Hund läuft", "", "  ", "eine Katze", " der  Hund "])
    target = write("t", ["一只狗在跑", "", "猫", "", "狗 在"])
    code, out, err = run("align", "model", source, target)
    assert code == 0 and err == "aligning by the last layer, the mean of its heads\n"
    lines = out.split("\n")
    assert len(lines) == 6 and lines[1] == lines[2] == lines[3] == lines[5] == ""
    assert all(re.fullmatch(r"[0-2]-[0-4]( [0-2]-[0-4])*", line) for line in lines[:1])
    assert all(re.fullmatch(r"([01]-[01]( [01]-[01])*)?", line) for line in lines[4:])


def test_alignment_as_jsonl_contains_words_and_weights(run):
    files = write("s", ["ein Hund läuft", "die Katze"]), write("t", ["狗在跑", "那只猫"])
    text, records = (run("align", "model", *files, *options)[1] for options in ((), ("--format", "jsonl")))
    for line, record in zip(text.splitlines(), map(json.loads, records.splitlines()), strict=True):
        assert " ".join(f"{link['source']}-{link['target']}" for link in record["links"]) == line
        assert all(0 < link["weight"] <= 1 for link in record["links"])
    assert record["line"] == 2
    assert record["source_words"] == ["die", "Katze"] and record["target_words"] == ["那", "只", "猫"]


def test_an_alignment_does_not_depend_on_the_other_pairs(run):
    files = write("s", GERMAN), write("t", CHINESE)
    together = run("align", "model", *files)[1].splitlines()
    for number, line in [*enumerate(together)][-1:]:
        assert run("align", "model", write("s", [GERMAN[number]]), write("t", [CHINESE[number]]))[1] == f"{line}\n"


def test_alignment_settings_come_from_the_metadata_unless_options_override_them(run, model):
    change_metadata(model, alignment={"layer": 1, "head": 3, "step": "reads", "rule": "mutual", "aer": 0.25})
    files = write("s", GERMAN), write("t", CHINESE)
    _, measured, err = run("align", "model", *files)
    assert err == "aligning by layer 1, head 3\n"
    named = ("--layer", 1, "--head", 3, "--step", "reads", "--rule", "mutual")
    change_metadata(model, alignment={})
    assert run("align", "model", *files, *named)[1] == measured
    assert run("align", "model", *files)[1] != measured
    change_metadata(model, alignment={"layer": 1, "head": 3})
    run("attention", "model", "--source", "ein Hund", "--output", "page.html")
    data = json.loads(Parsed(Path("page.html").read_text(encoding="utf-8")).data)
    assert data["first"] == {"kind": "cross", "layer": 1, "head": 3}


@pytest.mark.parametrize(("source", "target", "arguments", "message"), [
    (["a"], ["a", "b"], (), "s: 1 line; t: 2 lines. They must match line by line"),
    (["a"], ["b"], ("--layer", 3), "layer 3: the cross attention of this model has layers 1 to 2."),
    (["a", "x" * 70], ["b", "b"], (), "s:2: 7"),
    pytest.param(["a"], ["b"], ("--head", "all"), "--head all: expected a number of at least 1, or mean.",
                 marks=pytest.mark.slow),
])
def test_invalid_arguments_of_align_are_refused(run, source, target, arguments, message):
    code, out, err = run("align", "model", write("s", source), write("t", target), *arguments)
    assert code == 2 and out == "" and message in err


def test_invalid_alignment_settings_in_the_metadata_are_refused(run, model):
    change_metadata(model, alignment={"layer": "last"})
    code, _, err = run("align", "model", write("s", ["a"]), write("t", ["b"]))
    assert code == 2 and "Delete the entry to use the default settings" in err
