"""`seq2seq attention` and `seq2seq align`: what they write, and what they refuse."""

from __future__ import annotations

import base64
import html
import json
import re
import struct
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from random_models import GERMAN, recipe_text, save_random_model, trained_tokenizers

from seq2seq.analysis.attention_maps import Choice, SeenPair, Sentence
from seq2seq.analysis.attention_page import page
from seq2seq.analysis.attention_picture import picture
from seq2seq.analysis.attention_weights import AttentionMaps
from seq2seq.analysis.fonts import families_for
from seq2seq.analysis.token_labels import labels, rows_and_columns
from seq2seq.cli import main
from seq2seq.model import build_model
from seq2seq.model.load_model import stored_weights
from seq2seq.recipe import parse_recipe
from seq2seq.storage.checkpoints import save_bundle, update_bundle_metadata
from seq2seq.tokenizers.tokenizer import Tokenizers

RECIPE = recipe_text(
    290, "d_model: 12, encoder_layers: 1, decoder_layers: 2, num_heads: 3, feed_forward: 7, max_positions: 61",
    "beam_size: 2, max_length_ratio: 1.0, max_length_offset: 3", target="zh")
CHINESE = ["一只狗在跑", "一只猫在睡觉", "那只狗在睡觉", "那只猫在家里跑"]

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def shared_model(tmp_path_factory) -> Path:
    """A random model: it attends reproducibly, and means nothing by it."""
    tokenizers = trained_tokenizers(RECIPE, zip(GERMAN, CHINESE, strict=True))
    return save_random_model(tmp_path_factory.mktemp("models") / "model", RECIPE, tokenizers, seed=1)


@pytest.fixture
def model(shared_model, tmp_path, monkeypatch) -> Path:
    """Its bundle in an empty working directory."""
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "model"
    place.mkdir()
    for path in shared_model.iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    return place


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
    """Elements with their attributes, text outside scripts, and the data."""

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


def test_the_page_is_one_file_that_asks_the_network_for_nothing(run):
    code, _, err = run("attention", "model", "--source", "ein Hund schläft", "--output", "page.html")
    assert code == 0 and "page.html" in err
    text = Path("page.html").read_text(encoding="utf-8")
    assert "{{" not in text
    # In the weights, which are Base64, two slashes can stand before any letter.
    written = re.sub(r"[A-Za-z0-9+/=]{40,}", "", text.replace("/* ", ""))
    assert not re.search(r"https?:|//[a-z]|@import|url\(", written)
    parsed = Parsed(text)
    assert not any({"src", "href", "srcset", "action"} & attributes.keys() for _, attributes in parsed.elements)
    assert not {"link", "img", "iframe", "object"} & {tag for tag, _ in parsed.elements}
    policy = next(attributes["content"] for _, attributes in parsed.elements
                  if attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")


def test_both_texts_stand_in_the_page_whatever_they_contain(run):
    source, target = '</script><script>alert("x")</script>', "<b>'猫' & {{data}}</b>"
    assert run("attention", "model", "--source", source, "--target", target, "--output", "page.html")[0] == 0
    text = Path("page.html").read_text(encoding="utf-8")
    assert html.escape(source) in text and html.escape(target) in text
    parsed = Parsed(text)
    assert [tag for tag, _ in parsed.elements].count("script") == 2, "the data and the program"
    assert "b" not in [tag for tag, _ in parsed.elements]
    sides = json.loads(parsed.data)["sides"]
    assert (sides["source"]["text"], sides["target"]["text"]) == (source, target)
    assert (sides["source"]["language"], sides["target"]["language"]) == ("de", "zh")


def test_the_page_holds_every_weight(run):
    assert run("attention", "model", "--source", "der Hund", "--target", "狗在跑", "--output", "page.html",
               "--layer", "1", "--head", "all")[0] == 0
    data = json.loads(Parsed(Path("page.html").read_text(encoding="utf-8")).data)
    assert data["first"] == {"kind": "cross", "layer": 1, "head": "all"}
    source, target = (len(data["sides"][side]["pieces"]) + 1 for side in ("source", "target"))
    shapes = {kind: tuple(found["shape"]) for kind, found in data["maps"].items()}
    assert shapes == {"cross": (2, 3, target, source), "encoder": (1, 3, source, source),
                      "decoder": (2, 3, target, target)}
    for found in data["maps"].values():
        weights = np.frombuffer(base64.b64decode(found["weights"]), "<u2").reshape(found["shape"]) / 65535
        np.testing.assert_allclose(weights.sum(-1), 1, atol=source / 65535 + target / 65535)


def test_weights_above_one_are_kept():
    maps = np.array([[[[0.0, 2.5], [1.25, 0.5]]]], np.float32)
    pair = SeenPair(Sentence("a", ["▁a"], [(0, 1)]), Sentence("b", ["▁b"], [(0, 1)]), {"cross": maps})
    found = json.loads(Parsed(page(pair, ("de", "en"), "model", False, Choice("cross", 1, 1))).data)["maps"]["cross"]
    steps = np.frombuffer(base64.b64decode(found["weights"]), "<u2") / 65535 * found["largest"]
    np.testing.assert_allclose(steps, [0, 2.5, 1.25, 0.5], atol=1e-4)


def test_without_target_the_translation_of_the_model_is_shown(run):
    assert run("translate", "model", write("one.de", ["ein Hund"]), "--precision", "fp32")[0] == 0
    code, _, err = run("attention", "model", "--source", " ein Hund ", "--output", "page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    assert code == 0 and "translated by the model" in text
    translation = json.loads(Parsed(text).data)["sides"]["target"]["text"]
    assert err.splitlines()[0] == translation


@pytest.mark.parametrize(("arguments", "size"), [((), 1), (("--head", "all"), 4), (("--layer", "all"), 2),
                                                 (("--kind", "decoder", "--head", "2", "--layer", "1"), 1)])
def test_a_picture_is_a_png(run, monkeypatch, arguments, size):
    shown = []
    original = Choice.maps
    monkeypatch.setattr(Choice, "maps", lambda choice, pair: shown.append(original(choice, pair)) or shown[-1])
    code, _, err = run("attention", "model", "--source", "ein Hund", "--target", "a dog", "--output", "dog.png",
                       *arguments)
    assert code == 0, err
    image = Path("dog.png").read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    assert all(side > 150 for side in struct.unpack(">II", image[16:24]))
    assert len(shown[-1]) == size


PRIVATE = "\U0010fffd"
"""A private character, which no font has."""


@pytest.fixture
def fonts(tmp_path, monkeypatch):
    """matplotlib's fonts, with a cache of their own, and the folder of those that are installed."""
    manager, folder = font_manager.fontManager, tmp_path / "fonts"
    folder.mkdir()
    monkeypatch.setattr(manager, "ttflist", list(manager.ttflist))
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(path) for path in folder.iterdir()])
    monkeypatch.setattr("matplotlib.get_cachedir", lambda: str(tmp_path))
    yield folder
    manager._findfont_cached.cache_clear()


def install(place: Path, family: str, character: str) -> None:
    """Write a font that has one character, a square."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.ttGlyphPen import TTGlyphPen

    pen = TTGlyphPen(None)
    pen.moveTo((0, 0))
    for corner in ((0, 700), (700, 700), (700, 0)):
        pen.lineTo(corner)
    pen.closePath()
    font = FontBuilder(1000)
    font.setupGlyphOrder([".notdef", "square"])
    font.setupCharacterMap({ord(character): "square"})
    font.setupGlyf({".notdef": pen.glyph(), "square": pen.glyph()})
    font.setupHorizontalMetrics({".notdef": (800, 0), "square": (800, 0)})
    font.setupHorizontalHeader(ascent=800, descent=-200)
    font.setupNameTable({"familyName": family, "styleName": "Regular"})
    font.setupOS2()
    font.setupPost()
    font.save(place)


def test_a_font_that_is_missing_is_told(fonts, capsys):
    assert families_for("äß", ("de", "zh")) == ["DejaVu Sans"]
    assert capsys.readouterr().err == ""
    families_for(f"a{PRIVATE}", ("de", "zh"))
    assert capsys.readouterr().err.startswith(f"warning: no installed font has {PRIVATE}: the picture shows frames")


def test_a_font_installed_after_matplotlib_made_its_list_is_found_and_put_there(fonts, capsys):
    install(fonts / "new.ttf", "New Sans", PRIVATE)
    (fonts / "damaged.ttf").write_bytes(b"no font")
    assert families_for(f"a{PRIVATE}", ("de", "ja")) == ["DejaVu Sans", "New Sans"]
    assert capsys.readouterr().err == "matplotlib's list of fonts was out of date; new in it: 1\n"
    (cache,) = fonts.parent.glob("fontlist-*.json")
    assert "New Sans" in {font.name for font in font_manager.json_load(cache).ttflist}
    assert families_for(f"a{PRIVATE}", ("de", "ja")) == ["DejaVu Sans", "New Sans"]
    assert capsys.readouterr().err == ""


def test_a_font_deleted_after_matplotlib_made_its_list_is_passed_over(fonts, capsys):
    install(fonts / "old.ttf", "A Sans", PRIVATE)
    font_manager.fontManager.addfont(fonts / "old.ttf")
    (fonts / "old.ttf").rename(fonts / "moved.ttf")
    assert families_for(PRIVATE, ("ja",)) == ["A Sans"]
    (fonts / "moved.ttf").unlink()
    font_manager.fontManager._findfont_cached.cache_clear()
    assert families_for(PRIVATE, ("ja",)) == ["DejaVu Sans"]
    assert "no installed font has" in capsys.readouterr().err


def seen(maps):
    """A pair of two words with these maps of cross-attention."""
    sentence = Sentence("a b", ["▁a", "▁b"], [(0, 1), (1, 3)])
    return SeenPair(sentence, sentence, {"cross": maps})


def drawn(monkeypatch, pair, choice, text="a b"):
    """The figure that becomes the picture."""
    figures = []
    original = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *arguments, **options: (
        figures.append(self), original(self, *arguments, **options)))
    assert picture(pair, ("de", "ja"), text, choice).startswith(b"\x89PNG")
    return figures[0]


def test_a_character_without_a_font_is_told_once_and_not_by_matplotlib(fonts, monkeypatch, capsys, recwarn):
    drawn(monkeypatch, seen(np.full((1, 1, 3, 3), 1 / 3)), Choice("cross", 1, 1), text=f"a {PRIVATE}")
    assert not recwarn.list
    assert capsys.readouterr().err.count("\n") == 1


def test_a_row_of_a_picture_is_a_layer(monkeypatch):
    maps = np.random.default_rng(1).random((2, 4, 3, 3))
    figure = drawn(monkeypatch, seen(maps), Choice("cross", "all", "all"))
    rows: dict[int, set[str]] = {}
    for axes in figure.axes[:-1]:                                               # the last is the scale
        rows.setdefault(axes.get_subplotspec().rowspan.start, set()).add(axes.get_xlabel().split(",")[0])
    assert rows == {0: {"layer 1"}, 1: {"layer 2"}}


@pytest.mark.parametrize(("weights", "limits", "told"), [
    (np.full((1, 1, 3, 3), 1 / 3), (0, 2 / 3), "weight, 0.3333 everywhere"),
    (np.linspace(0.31, 0.35, 9).reshape(1, 1, 3, 3), (0.31, 0.35), "weight, 0.3100 to 0.3500"),
])
def test_colours_span_the_weights_of_the_map_and_the_scale_says_so(monkeypatch, weights, limits, told):
    figure = drawn(monkeypatch, seen(weights), Choice("cross", 1, 1))
    plot, scale = figure.axes
    assert plot.images[0].get_clim() == pytest.approx(limits) and scale.get_ylabel() == told


def test_pieces_have_names_that_can_be_read_aloud():
    spans = [(0, 0), (0, 1), (1, 1), (1, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    sentence = Sentence("a龘<\t b", ["▁", "a", "<0xE9>", "<0xBE>", "<0x98>", "<0x3C>", "<0x09>", "▁b"], spans)
    found = labels(sentence)
    assert [label.text for label in found] == ["▁", "a", "E9", "BE", "98", "<", "09", "▁b"]
    assert [label.name for label in found] == ["space", "a", "byte E9 of 龘", "byte BE of 龘", "byte 98 of 龘",
                                               "byte 3C of <", "byte 09", "b"]


def test_a_decoder_reads_one_piece_later_than_it_writes():
    sentence = Sentence("a b", ["▁a", "▁b"], [(0, 1), (1, 3)])
    rows, columns = rows_and_columns(SeenPair(sentence, sentence, {}), "decoder")
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


def test_a_language_model_attends_to_its_text_alone(run, model):
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
                               (["--target", "a dog"], "reads one text; leave --target out.")):
        code, _, err = run("attention", "text", "--source", "ein Hund", "--output", "other.html", *arguments)
        assert code == 2 and message in err
    code, _, err = run("align", "text", write("s", ["a"]), write("t", ["b"]))
    assert code == 2 and "this is a language model" in err


def test_a_model_without_attention_is_refused(run, monkeypatch):
    nothing = AttentionMaps([], [], [])
    monkeypatch.setattr("seq2seq.analysis.attention_maps.attention_maps", lambda model, batch, kinds: nothing)
    code, _, err = run("attention", "model", "--source", "ein Hund", "--output", "page.html")
    assert code == 2 and err == "this model has no cross attention.\n"


@pytest.mark.parametrize(("arguments", "message"), [
    (("--output", "page.pdf"), "--output page.pdf: the name must end in .html for a page or in .png"),
    (("--output", "page.html", "--layer", "3"), "--layer 3: the cross attention of this model has the layers 1 to 2."),
    (("--output", "page.html", "--layer", "0"), "--layer 0: expected a number of at least 1, or all."),
    (("--output", "page.html", "--head", "4"), "--head 4: a layer of this model has the heads 1 to 3; or say mean."),
    (("--output", "page.html", "--head", "best"), "--head best: expected a number of at least 1, or mean, or all."),
    (("--output", "page.html", "--layer", "2", "--kind", "encoder"), "has only layer 1."),
    (("--output", "page.html", "--source", "  "), "--source is empty: give one sentence."),
    (("--output", "page.html", "--target", "a\nb"), "--target has several lines: give one sentence."),
    (("--output", "page.html", "--target", "x" * 70), "Give a shorter sentence."),
    (("--output", "nowhere/page.html"), "nowhere/page.html cannot be written"),
])
def test_what_cannot_be_shown_is_refused(run, arguments, message):
    code, out, err = run("attention", "model", "--source", "ein Hund", *arguments)
    assert code == 2 and out == "" and message in err
    assert not [path for path in Path().iterdir() if path.suffix in (".html", ".pdf", ".png")]


def test_a_picture_without_matplotlib_names_the_library(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, err = run("attention", "model", "--source", "ein Hund", "--output", "dog.png")
    assert code == 2 and "pip install matplotlib" in err
    assert run("attention", "model", "--source", "ein Hund", "--output", "dog.html")[0] == 0


def test_a_line_of_links_comes_out_for_every_pair(run):
    source = write("s", ["ein Hund läuft", "", "  ", "eine Katze", " der  Hund "])
    target = write("t", ["一只狗在跑", "", "猫", "", "狗 在"])
    code, out, err = run("align", "model", source, target)
    assert code == 0 and err == "aligning by the last layer, the mean of its heads\n"
    lines = out.split("\n")
    assert len(lines) == 6 and lines[1] == lines[2] == lines[3] == lines[5] == ""
    assert all(re.fullmatch(r"[0-2]-[0-4]( [0-2]-[0-4])*", line) for line in lines[:1])
    assert all(re.fullmatch(r"([01]-[01]( [01]-[01])*)?", line) for line in lines[4:])


def test_alignment_as_records_has_words_and_weights(run):
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
    for number, line in enumerate(together):
        assert run("align", "model", write("s", [GERMAN[number]]), write("t", [CHINESE[number]]))[1] == f"{line}\n"


def test_the_best_layer_and_head_are_taken_from_the_metadata_unless_others_are_named(run, model):
    update_bundle_metadata(model, alignment={"layer": 1, "head": 3, "step": "reads", "rule": "mutual", "aer": 0.25})
    files = write("s", GERMAN), write("t", CHINESE)
    _, measured, err = run("align", "model", *files)
    assert err == "aligning by layer 1, head 3\n"
    named = ("--layer", 1, "--head", 3, "--step", "reads", "--rule", "mutual")
    update_bundle_metadata(model, alignment={})
    assert run("align", "model", *files, *named)[1] == measured
    assert run("align", "model", *files)[1] != measured
    update_bundle_metadata(model, alignment={"layer": 1, "head": 3})
    run("attention", "model", "--source", "ein Hund", "--output", "page.html")
    data = json.loads(Parsed(Path("page.html").read_text(encoding="utf-8")).data)
    assert data["first"] == {"kind": "cross", "layer": 1, "head": 3}


@pytest.mark.parametrize(("source", "target", "arguments", "message"), [
    (["a"], ["a", "b"], (), "s has 1 lines, t has 2. They must match line by line"),
    (["a"], ["b"], ("--layer", 3), "--layer 3: the cross attention of this model has the layers 1 to 2."),
    (["a"], ["b"], ("--head", "all"), "--head all: expected a number of at least 1, or mean."),
    (["a", "x" * 70], ["b", "b"], (), "s:2: 7"),
])
def test_what_cannot_be_aligned_is_refused(run, source, target, arguments, message):
    code, out, err = run("align", "model", write("s", source), write("t", target), *arguments)
    assert code == 2 and out == "" and message in err


def test_metadata_that_make_no_sense_are_told(run, model):
    update_bundle_metadata(model, alignment={"layer": "last"})
    code, _, err = run("align", "model", write("s", ["a"]), write("t", ["b"]))
    assert code == 2 and "Measure again, or delete the entry" in err
