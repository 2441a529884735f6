"""Commands of the how-to pages: they run, one after another, on a small text and with few steps."""

import gzip
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from freeze import sentence

from tests import fairseq_models

ROOT = Path(__file__).parents[1]
FEW_STEPS = ("training.max_steps=6", "training.validate_every=2", "training.warmup_steps=1", "training.log_every=1",
             "training.batch_tokens=256", "training.precision=fp32", "model.base=tiny", "decoding.max_length=20")
MORE_STEPS = ("training.max_steps=100", "training.validate_every=100", *FEW_STEPS[2:])
"""An adaptation writes a model only if it gains significantly."""
LANGUAGE_MODEL = """
name: english
languages: {target: en}
data: {train: [{text: train.en}], valid: {text: valid.en}}
tokenizer: {taken_from: runs/mine}
model: {type: language_model, d_model: 32, decoder_layers: 1, num_heads: 2, feed_forward: 64}
training: {batch_tokens: 256, learning_rate: 1e-3, warmup_steps: 1, schedule: linear, max_steps: 2,
  precision: fp32}
"""
TMX = ('<tmx version="1.4"><header srclang="de" datatype="plaintext" segtype="sentence" adminlang="en" o-tmf="x" '
       'creationtool="x" creationtoolversion="1"/><body>{}</body></tmx>')
UNIT = '<tu><tuv xml:lang="de"><seg>{}</seg></tuv><tuv xml:lang="en"><seg>{}</seg></tuv></tu>'


def code(page, language=""):
    """Return the code blocks of a page of the documentation."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / page).read_text(encoding="utf-8"),
                        re.MULTILINE | re.DOTALL)
    return [text for name, text in blocks if name == language]


def catalogue(pairs):
    """Return a PO file with the pairs as messages."""
    header = ("", r"Language: en\nX-Source-Language: de\nContent-Type: text/plain; charset=UTF-8\n")
    return "\n".join(f'msgid "{source}"\nmsgstr "{target}"\n' for source, target in [header, *pairs])


class Shell:
    """A directory in which commands of the documentation run."""

    def __init__(self, directory, programs):
        self.directory, self.programs = directory, programs

    def run(self, block, few_steps=FEW_STEPS):
        """Run the commands of seq2seq in a code block, trainings with few steps."""
        lines = [line for line in block.replace("\\\n", "").splitlines() if line.startswith("seq2seq ")]
        for line in lines:
            command = line.partition("  #")[0].rstrip()
            if command.split()[1] in ("train", "adapt", "check") or command.startswith("seq2seq compare mine.yaml"):
                settings = MORE_STEPS if command.split()[1] == "adapt" else few_steps
                command += "".join(f" --set {setting}" for setting in settings)
            done = subprocess.run(command, shell=True, cwd=self.directory, capture_output=True, text=True, env={
                **os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"})
            assert done.returncode == 0, f"{command}\n{done.stderr}"
        return lines


def programs_in(directory):
    """Return a new directory with the program seq2seq."""
    programs = directory / "programs"
    programs.mkdir()
    (programs / "seq2seq").write_text(f'#!/bin/sh\nexec {sys.executable} -m seq2seq "$@"\n')
    (programs / "seq2seq").chmod(0o755)
    return programs


@pytest.fixture(scope="module")
def shell(tmp_path_factory):
    """A function that makes a directory with text, and optionally with trained models."""
    base = tmp_path_factory.mktemp("documented")
    programs = programs_in(base)
    generator = random.Random(1)
    pairs = [sentence(generator) for _ in range(4000)]                          # English and German
    files = {"train": pairs[:3000], "valid": pairs[3000:3050], "news": pairs[3500:3520], "manuals": pairs[3000:3300],
             "dev": pairs[3000:3050]}
    terms, letter = pairs[3000:3300], pairs[3500:3520]
    models = base / "models"

    def directory(name, with_models=False):
        place = base / name
        if with_models:
            shutil.copytree(models, place)
        else:
            place.mkdir()
        for file, chosen in files.items():
            for language, side in (("sw", 1), ("de", 1), ("en", 0)):
                (place / f"{file}.{language}").write_text("".join(f"{pair[side]}\n" for pair in chosen))
        german = [(source, target) for target, source in terms]
        (place / "news.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in german[:200]))
        (place / "memory.tmx").write_text(TMX.format("".join(UNIT.format(*pair) for pair in german)))
        (place / "news.tmx").write_text(TMX.format("".join(UNIT.format(*pair) for pair in german[:20])))
        for folder in ("ui", "po"):
            (place / folder).mkdir(exist_ok=True)
            (place / folder / "de.po").write_text(catalogue(dict(german).items()))
        for name_of_letter in ("letter.sw", "letter.de"):
            (place / name_of_letter).write_text("".join(f"{source}\n" for _, source in letter[:3]))
        (place / "corpus.de.gz").write_bytes(gzip.compress("\n".join(source for _, source in letter[:9]).encode()))
        (place / "page.html").write_text(f"<p>{letter[0][1]}</p>")
        (place / "starts.en").write_text("I\n\nWe\n")
        (place / "phrases.en").write_text("\nred\n\n")
        (place / "news.mt").write_text("".join(f"{target}\n" for target, _ in letter))
        recipe = code("training.md", "yaml")[0]
        # The other pages translate from German, and one of them with a tag.
        from_german = recipe.replace("sw", "de").replace(
            "train: [", "train: [{source: dev.de, target: dev.en, tag: <law>}, ")
        for file in ("mine.yaml", "recipe.yaml"):
            (place / file).write_text(recipe if name.startswith("training") else from_german)
        (place / "other.yaml").write_text(re.sub("^name: .*", "name: other", from_german, flags=re.MULTILINE))
        return Shell(place, programs)

    trained = directory("models")
    trained.run("seq2seq train mine.yaml")
    (models / "english.yaml").write_text(LANGUAGE_MODEL)
    subprocess.run([programs / "seq2seq", "train", "english.yaml"], cwd=models, check=True, capture_output=True)
    for name in ("second", "other", "de_en", "mine_2", "other_2"):
        shutil.copytree(models / "runs/mine", models / "runs" / name)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("page", ["training", "translating", "evaluating", "adapting", "publishing"])
def test_the_commands_of_a_how_to_page_run(page, shell):
    ran = []
    for number, block in enumerate(code(f"{page}.md")):
        if "seq2seq " in block:                                                 # a page of training has several models
            ran += shell(f"{page}{number}", with_models=page != "training").run(block)
    assert len(ran) >= {"training": 10, "translating": 15, "evaluating": 8, "adapting": 3, "publishing": 1}[page]


@pytest.mark.slow
def test_the_commands_of_the_page_on_pretrained_models_run(tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setattr(fairseq_models, "NLLB_LANGUAGES", ["ces_Latn", "deu_Latn", "eng_Latn", "swh_Latn", "zho_Hans"])
    fairseq_models.make(tmp_path / "nllb")
    (tmp_path / "recipe.yaml").write_text(code("pretrained.md", "yaml")[0])
    (tmp_path / "text.zgh").write_text("ⵉⴷⵉ ⴰⵔ ⵉⵜⵜⴰⵣⵣⵍ\nⵉⴷⵉ ⴰⵔ\n")
    generator = random.Random(1)
    for name, size in (("train", 300), ("valid", 20), ("test", 20)):
        pairs = [sentence(generator) for _ in range(size)]                      # English and German
        for side, language in enumerate(("en", "sw")):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    place = Shell(tmp_path, programs_in(tmp_path))
    few_steps = [*(each for each in FEW_STEPS if not each.startswith("model.")), "data.cleaning.max_pieces=99",
                 "decoding.min_length=1"]                                       # CTranslate2 has fewer empty ones
    ran = []
    for block in code("pretrained.md"):
        ran += place.run(re.sub("^seq2seq serve.*", "", block, flags=re.MULTILINE), few_steps)
    assert len(ran) == 7


@pytest.mark.slow
def test_the_python_of_the_how_to_page_runs(shell):
    place = shell("python", with_models=True).directory
    shutil.copytree(place / "runs/mine", place / "runs/multi30k_de_en")
    done = subprocess.run([sys.executable, "-c", "\n".join(code("python.md", "python"))], cwd=place, text=True,
                          capture_output=True)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert sum("\t" in line for line in printed) in range(2, 7)                 # a retried line has one translation
    assert sum("</s>" in line for line in printed) == 1 and printed[-1].endswith("]]")
