"""Loading of the models of a server, and replacing them while requests come."""

import asyncio
import logging
import math
import os
import shutil
import threading
from dataclasses import replace

import numpy as np
import pytest
from random_models import recipe_text, save_random_model, trained_tokenizers
from served import wait_until

from seq2seq.errors import UserError
from seq2seq.serve.api import Settings
from seq2seq.serve.errors import SlowdownError
from seq2seq.serve.limits import Limits
from seq2seq.serve.models import Group, MachineOptions, Models, RequestOptions
from seq2seq.serve.scheduler import Again, estimate_tokens
from seq2seq.serve.server import application
from seq2seq.serve.service import Service
from seq2seq.storage.checkpoints import MODEL, load_bundle, save_bundle, weights_checksum
from seq2seq.storage.directories import METADATA
from seq2seq.tokenizers.source import Source

SIZES = "d_model: 12, encoder_layers: 1, decoder_layers: 1, num_heads: 2, feed_forward: 7, max_positions: 31"
DECODING = "beam_size: 2, max_length: 5, safety_net: false"
RECIPE = recipe_text(283, SIZES, DECODING)
MACHINE = MachineOptions(precision="fp32")
TO_ENGLISH = Group("de", "en")


@pytest.fixture(scope="module")
def tokenizers():
    return trained_tokenizers(RECIPE)


@pytest.fixture
def save(tmp_path, tokenizers):
    """Function that writes a model under a name, or replaces it."""

    def write(name="de_en", seed=2, recipe=RECIPE):
        return save_random_model(tmp_path / name, recipe, tokenizers, seed, noise=0.3)

    return write


def texts(models, group=TO_ENGLISH):
    return [one.text for one in models.translate(group, ["ein Hund läuft"])[0]]


def test_models_are_found_by_their_direction(save):
    other = save("en_zh", 3, RECIPE.replace("{source: de, target: en}", "{source: eng, target: zho}", 1))
    models = Models.load([save(), other], MACHINE)
    assert models.directions.direct == (("de", "en"), ("en", "zh-Hans"))
    assert [line.split(":")[0] for line in models.describe()] == ["de to en", "en to zh-Hans"]
    assert texts(models) != texts(models, Group("en", "zh-Hans"))


@pytest.mark.parametrize("decoding", [
    DECODING, DECODING + ", sampling: true, seed: 3",
    *(pytest.param(decoding, marks=pytest.mark.slow) for decoding in (
        DECODING + ", mbr: 2", DECODING.replace("beam_size: 2", "beam_size: 4, diverse_groups: 2")))])
def test_alternatives_and_confidence_fit_the_decoding_of_any_recipe(save, decoding):
    models = Models.load([save(recipe=recipe_text(283, SIZES, decoding))], MACHINE)
    for n_best in (1, 3):
        group = Group("de", "en", RequestOptions(n_best, word_confidence=True))
        alone = models.translate(group, ["ein Hund"])
        assert 1 <= len(alone[0]) <= n_best and alone[0][0].words
        together = models.translate(group, ["Katze", "ein Hund"])[1]
        assert [one.text for one in together] == [one.text for one in alone[0]]


def test_a_decoding_option_of_the_server_that_a_recipe_does_not_allow_is_refused(save):
    path = save(recipe=recipe_text(283, SIZES, DECODING + ", mbr: 2"))
    with pytest.raises(UserError, match=f"{path}: .*a beam of 1 cannot produce 2 candidates"):
        Models.load([path], replace(MACHINE, decoding={"beam_size": 1}))


def test_the_beam_size_of_the_server_replaces_that_of_the_recipe(save):
    path = save()
    assert texts(Models.load([path], replace(MACHINE, decoding={"beam_size": 1}))) == [
        one.text for translator in Models.load([path], MACHINE)._loaded[0].translators.values()
        for one in translator.translate(["ein Hund läuft"], beam_size=1)[0]]


def test_faulty_translations_are_searched_again_in_another_batch(save):
    """A model with random weights repeats words."""
    path = save(recipe=recipe_text(283, SIZES, "beam_size: 2, max_length: 20, safety_net: true"))
    models, lines = Models.load([path], MACHINE), ["ein Hund läuft", "zwei", "drei Katzen schlafen im Haus", "1234"]
    first = models.translate(TO_ENGLISH, lines)
    final = models.translate(replace(TO_ENGLISH, retries=True), lines)
    again = [index for index, found in enumerate(first) if isinstance(found, Again)]
    assert again and {first[index].group for index in again} == {replace(TO_ENGLISH, retries=True)}
    assert [found for found in first if not isinstance(found, Again)] == [
        found for index, found in enumerate(final) if index not in again]
    service = Service(models)
    assert service.scheduler.submit(TO_ENGLISH, lines).result(60) == final
    service.scheduler.close()


@pytest.mark.parametrize("machine, expected", [
    ({}, True), ({"safety_net": True}, True), ({"safety_net": False}, False)])
def test_the_safety_net_of_the_server_replaces_that_of_the_recipe(save, machine, expected):
    path = save(recipe=recipe_text(283, SIZES, DECODING.replace("safety_net: false", "safety_net: true")))
    models = Models.load([path], replace(MACHINE, decoding=machine))
    translator, = models._loaded[0].translators.values()
    assert translator.decoding.safety_net == expected


def test_a_model_whose_files_changed_is_replaced(save):
    models = Models.load([save()], MACHINE)
    old = texts(models)
    assert models.reload() == {}
    path = save(seed=3)
    assert models.reload() == {f"{path} was loaded again": True}
    assert texts(models) != old and models.reload() == {}
    assert models.reload(changed_only=False) == {f"{path} was loaded again": True}


def test_a_damaged_model_leaves_the_old_one_in_use(save, tmp_path):
    models = Models.load([save()], MACHINE)
    old, path = texts(models), tmp_path / "de_en"
    (save(seed=3) / MODEL).write_bytes(b"damaged")
    ((message, succeeded),) = models.reload().items()
    assert not succeeded and message.startswith(f"{path} cannot be loaded, the old model stays in use: ")
    assert texts(models) == old
    assert models.reload() == {}                                                # the same files are not tried again
    shutil.rmtree(path)
    assert models.reload() == {} and texts(models) == old
    assert len(models.reload(changed_only=False)) == 1 and texts(models) == old
    save(seed=3)
    assert models.reload() == {f"{path} was loaded again": True} and texts(models) != old


def test_a_model_whose_metadata_are_copied_last_is_replaced_once_they_are_there(save):
    path = save()
    models = Models.load([path], MACHINE)
    old = texts(models)
    new = save("new", seed=3)
    shutil.copy(new / MODEL, path / MODEL)
    assert models.reload() == {} and texts(models) == old
    shutil.copy(new / METADATA, path / METADATA)
    assert models.reload() == {f"{path} was loaded again": True} and texts(models) != old


def test_glossaries_are_read_for_the_new_direction_of_a_model(save, tmp_path):
    (tmp_path / "terms.tsv").write_text("Hund\tdog\n")
    models = Models.load([save()], MACHINE, {"animals": tmp_path / "terms.tsv"})
    assert list(models.glossaries) == [("animals", "de", "en")]
    save(seed=3, recipe=RECIPE.replace("source: de, target: en", "source: de, target: fr", 1))
    assert "was loaded again" in next(iter(models.reload()))
    assert list(models.glossaries) == [("animals", "de", "fr")]


def test_a_model_may_get_another_direction_unless_it_is_served_already(save):
    reverse = RECIPE.replace("source: de, target: en", "source: en, target: de", 1)
    models = Models.load([save(), save("en_de", 3, reverse)], MACHINE)
    save(seed=3, recipe=reverse)
    assert "both translate from en to de" in next(iter(models.reload())) and models.directions.direct[0] == ("de", "en")
    save(seed=3, recipe=RECIPE.replace("source: de, target: en", "source: de, target: fr", 1))
    assert "was loaded again" in next(iter(models.reload())) and models.directions.direct[0] == ("de", "fr")
    with pytest.raises(SlowdownError):
        models.translate(TO_ENGLISH, ["Hund"])


def test_requests_get_the_old_or_the_new_translation_while_a_model_is_replaced(save):
    """The application checks the files by itself, and no request fails meanwhile."""
    import requests
    from served import running

    models = Models.load([save()], MACHINE)
    service = Service(models)
    old = texts(models)[0]
    seen, failures, stop = [], [], threading.Event()

    def client(url):
        while not stop.is_set() and len(failures) < 5:
            answer = requests.post(f"{url}/translate", timeout=20,
                                   json={"q": "ein Hund läuft", "source": "de", "target": "en"})
            if answer.status_code != 200:
                failures.append(answer.text)
            elif answer.json()["translatedText"] not in seen:
                seen.append(answer.json()["translatedText"])

    with running(application(service, Limits(), Settings(), reload_seconds=0.05)) as url:
        threads = [threading.Thread(target=client, args=(url,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        wait_until(lambda: seen == [old])
        save(seed=3)
        wait_until(lambda: len(seen) == 2)
        save(seed=7)
        wait_until(lambda: len(seen) == 3)
        stop.set()
        for thread in threads:
            thread.join(20)
    assert not failures and seen[2] == texts(models)[0]
    assert not service.scheduler.alive


def test_metrics_and_log_tell_which_model_is_served_and_whether_it_could_be_loaded_again(save, caplog):
    import requests
    from served import running

    def lines(url):
        return requests.get(f"{url}/metrics", timeout=20).text.splitlines()

    path = save()
    service = Service(Models.load([path], MACHINE))
    caplog.set_level(logging.INFO, "seq2seq.serve")
    with running(application(service, Limits(), Settings(), reload_seconds=0.05)) as url:
        served = f'seq2seq_model_info{{model="{path}",sha256="{weights_checksum(path)[:12]}"}} 1'
        assert {served, 'seq2seq_reloads_total{result="succeeded"} 0'} <= set(lines(url))
        (path / MODEL).write_bytes(b"damaged")
        os.replace(save("other", seed=3) / METADATA, path / METADATA)           # only now are the files read
        wait_until(lambda: 'seq2seq_reloads_total{result="failed"} 1' in lines(url))
        assert served in lines(url)
        save(seed=3)
        wait_until(lambda: 'seq2seq_reloads_total{result="succeeded"} 1' in lines(url))
        replaced = f'seq2seq_model_info{{model="{path}",sha256="{weights_checksum(path)[:12]}"}} 1'
        assert replaced in lines(url) and served not in lines(url)
    about_models = [(one.levelname, one.message.partition(":")[0]) for one in caplog.records if "loaded" in one.message]
    assert about_models == [("ERROR", f"{path} cannot be loaded, the old model stays in use"),
                            ("INFO", f"{path} was loaded again")]


def test_tokens_are_counted_as_the_model_reads_them_in_proportion_to_the_beam(save):
    models, lines = Models.load([save()], MACHINE), list(map(Source, ["ein Hund", "<!D" * 5]))
    translator, = models._loaded[0].translators.values()
    lengths = [len(ids) + 1 for ids in translator.encode(lines)]
    assert lengths[1] > 2 * estimate_tokens(lines[1])
    for n_best, factor in ((1, 0.4), (10, 2)):
        divided = models.divide(Group("de", "en", RequestOptions(n_best)), lines)
        assert [(one.items, one.tokens) for one in divided] == [
            ([line], [math.ceil(factor * length)]) for line, length in zip(lines, lengths, strict=True)]
    assert [one.tokens for one in models.divide(Group("xx", "yy"), lines)] == [[estimate_tokens(one)] for one in lines]


def translated(models, batch_tokens, texts, **options):
    """Return the answer of a service to a request, and the number of its batches."""
    batches, translate = [], models.translate
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "translate", lambda group, items: batches.append(items) or translate(group, items))
        service = Service(models, batch_tokens)
        answer = asyncio.run(service.translate(texts, "de", "en", **options))
        service.scheduler.close()
    return answer, len(batches)


SENTENCE = "ein Hund läuft und eine Katze schläft auf der Straße neben dem Haus mit zwei Kindern"


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("options", [{}, {"alternatives": 2, "confidence": True}, {"glossary": "animals"}])
def test_a_request_in_many_batches_has_the_translations_of_one_in_a_single_batch(save, tmp_path, precision, options):
    """Random weights make faulty translations, which are translated again, as are those that lack terms."""
    (tmp_path / "terms.tsv").write_text("Hund\tdog\nKatze\tcat\n")
    path = save(recipe=recipe_text(283, SIZES, "beam_size: 2, max_length: 20, safety_net: true"))
    models = Models.load([path], MachineOptions(precision=precision), {"animals": tmp_path / "terms.tsv"})
    words = SENTENCE.split()
    texts = [" ".join(words[begin:begin + 1 + begin % 5]) for begin in range(len(words))]
    whole, few = translated(models, 10**6, texts, **options)
    split, many = translated(models, 1, texts, **options)
    assert split == whole and few <= 2 and many > len(texts)
    translator, = models._loaded[0].translators.values()
    translator = translator.protecting(glossary=models.glossaries.get((options.get("glossary"), "de", "en")))
    expected = translator.translate(texts, n_best=1 + options.get("alternatives", 0),
                                    beam_size=2 + (options.get("alternatives", 0) > 1))
    assert [one.versions for one in split] == [[found.text for found in n_best] for n_best in expected]


@pytest.mark.parametrize("net", ["false", "true"])
def test_the_parts_of_a_sentence_that_is_too_long_for_the_model_are_translated_in_different_batches(save, net):
    models = Models.load([save(recipe=recipe_text(283, SIZES, f"beam_size: 2, max_length: 20, safety_net: {net}"))],
                         MACHINE)
    translator, = models._loaded[0].translators.values()
    text = " ".join([SENTENCE] * 5)
    expected, = translator.translate([text])
    (found,), batches = translated(models, 1, [text])
    assert found.versions == [expected[0].text] and batches >= expected[0].parts > 5
    assert found.report == ({"faults": dict.fromkeys(expected[0].faults, 1)} if expected[0].faults else {})
    (found,), _ = translated(models, 1, [text], confidence=True)
    assert [word["text"] for word in found.words] == found.versions[0].split()


def test_a_placeholder_that_is_longer_than_the_model_allows_is_kept(save):
    models = Models.load([save(recipe=recipe_text(283, SIZES, "beam_size: 2, max_length: 20, safety_net: true"))],
                         MACHINE)
    text = f"ein Hund läuft https://example.org/{'a-b/' * 30} und eine Katze schläft"
    (found,), _ = translated(models, 1, [text])
    assert found.versions == [text] and found.report == {"faults": {"copied": 1}}


@pytest.mark.parametrize("value, reason", [
    (0.0, "its translation is empty"), (math.nan, "contains NaN or infinity"), (math.inf, "contains NaN or infinity"),
    (3e38, "cannot translate the line")])
def test_a_model_that_cannot_translate_does_not_replace_another(save, value, reason):
    path = save()
    models = Models.load([path], MACHINE)
    before = texts(models)
    bundle = load_bundle(path)
    broken = {name: np.full_like(weight, value) for name, weight in bundle.weights.items()}
    shutil.rmtree(path)
    save_bundle(path, broken, bundle.recipe_text, bundle.tokenizer_files, bundle.metadata)
    message, = models.reload()
    assert "the old model stays in use" in message and reason in message
    assert texts(models) == before and models.reload() == {}


def test_a_pipe_as_glossary_or_model_file_does_not_hold_a_reload(save, tmp_path):
    path, glossary = save(), tmp_path / "terms.tsv"
    glossary.write_text("Hund\tdog\n")
    models = Models.load([path], MACHINE, {"terms": glossary})
    for file in (glossary, path / METADATA, path / MODEL):
        file.unlink()
        os.mkfifo(file)
        messages = models.reload(changed_only=False)
        assert any("in use" in message for message in messages)
    assert texts(models)
