"""Models that read the language of the source are served with all pairs of their languages, or with chosen ones."""

import itertools
import time

import pytest
import requests
from served import serving

from seq2seq.cli import main
from seq2seq.errors import UserError
from seq2seq.interop.huggingface_import import import_model
from seq2seq.serve.directions import Directions
from seq2seq.serve.models import MachineOptions, Models
from tests.fairseq_models import make

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nllb")
    make(folder / "theirs")
    import_model(str(folder / "theirs"), folder / "ours")
    return folder / "ours"


def load(bundle, *languages):
    return Models.load([bundle], MachineOptions("cpu", "fp32", decoding={"min_length": 3}, languages=languages))


def test_all_pairs_of_languages_are_listed_under_their_usual_codes(bundle):
    models = load(bundle)
    codes = ["ace-Arab", "ar", "de", "el", "en", "hi", "ru", "zh-Hans", "zh-Hant"]
    assert sorted(models.directions.languages) == codes
    assert set(models.directions.direct) == set(itertools.permutations(codes, 2))
    assert len(models.describe()) == 1
    with serving(models) as (address, *_):
        listed = {one["code"]: one["targets"] for one in requests.get(f"{address}/languages").json()}
        assert sorted(listed) == codes and sorted(listed["hi"]) == codes
        found = requests.post(f"{address}/translate", json={"q": "ein Hund", "source": "de", "target": "ell_Grek"})
        assert found.status_code == 200


def test_chosen_languages_are_served_and_others_refused(bundle):
    models = load(bundle, "deu", "zh_Hans", "en")
    assert sorted(models.directions.languages) == ["de", "en", "zh-Hans"]
    with serving(models) as (address, *_):
        for source, target, status in (("en", "de", 200), ("en", "ru", 400), ("ru", "de", 400), ("en", "zh-Hant", 400)):
            asked = {"q": "a dog", "source": source, "target": target}
            assert requests.post(f"{address}/translate", json=asked).status_code == status


@pytest.mark.parametrize("languages", [("de", "fr"), ("de",)])
def test_languages_that_no_model_has_are_refused(bundle, languages):
    with pytest.raises(UserError, match="--languages"):
        load(bundle, *languages)


def test_the_language_of_the_source_is_that_of_the_request(bundle):
    models = load(bundle)
    for pair in (("de", "ru"), ("hi", "ru")):
        translator = models._by_direction[pair].translators[pair]
        source = translator.source("Hund")
        assert source.source_language in ("deu_Latn", "hin_Deva") and source.language == "rus_Cyrl"
        assert translator.languages.source == source.source_language


def test_two_hundred_languages_are_listed_at_once():
    codes = [f"a{number}" for number in range(200)]
    directions = Directions(tuple(itertools.permutations(codes, 2)))
    began = time.process_time()
    assert all(len(directions.targets(code)) == 200 for code in directions.languages)
    assert time.process_time() - began < 10


def test_the_command_line_names_both_languages(bundle, tmp_path, capsys):
    text, output = tmp_path / "text", tmp_path / "output"
    text.write_text("Hund\n")
    arguments = ["translate", str(bundle), str(text), "--output", str(output), "--precision", "fp32"]
    assert main([*arguments, "--source-language", "ru", "--target-language", "zh-Hant"]) == 0
    assert "from rus_Cyrl to zho_Hant" in capsys.readouterr().err
    for source in ("fr", "japanese"):
        assert main([*arguments, "--source-language", source]) == 2
        assert "hin_Deva" in capsys.readouterr().err
    assert main([*arguments, "--source-language", "el", "--target-language", "ell_Grek"]) == 2
