"""Wrong numbers are found in generated pairs of five languages, and right ones are not reported."""

import pytest
from generated_numbers import generated_pairs

from seq2seq.translation.output_faults import faults

OTHER_SENTENCES = {
    "quantity": ["{} is what we measured on Monday.", "{} haben wir am Montag gemessen.",
        "Nous avons mesuré {} lundi.", "Medimos {} el lunes.", "我们测得{}，没有问题。"],
    "price": ["They want {} for the old boat!", "Sie wollen {} für das alte Boot!",
        "Ils veulent {} pour le vieux bateau !", "¡Quieren {} por el viejo barco!", "那艘旧船要{}！"],
    "date": ["Born {}, he grew up by the sea.", "Geboren {}, wuchs er am Meer auf.",
        "Né le {}, il a grandi au bord de la mer.", "Nacido el {}, creció junto al mar.", "他生于{}，在海边长大。"],
    "time": ["Call me at {}, please.", "Ruf mich bitte um {} an.", "Appelle-moi à {}, s'il te plaît.",
        "Llámame a las {}, por favor.", "请{}给我打电话。"],
    "count": ["({} visitors came.)", "({} Besucher kamen.)", "({} visiteurs sont venus.)",
        "(Vinieron {} visitantes.)", "（来了{}名游客。）"],
    "decimal": ["A value of {} is too much.", "Ein Wert von {} ist zu viel.", "Une valeur de {} est excessive.",
        "Un valor de {} es demasiado.", "{}的值太大。"],
    "millions": ["About {} people saw it.", "Etwa {} Menschen sahen es.", "Environ {} personnes l'ont vu.",
        "Lo vieron {} personas.", "约有{}人看过。"],
}


@pytest.mark.parametrize(("seed", "options"), [(1, {}), (2, {"sentences": OTHER_SENTENCES})])
def test_wrong_numbers_are_found_and_right_ones_are_not(seed, options):
    found = {True: 0, False: 0}
    for source, translation, source_language, target_language, is_right in generated_pairs(1000, seed, **options):
        found[is_right] += "lost_number" in faults(source, translation, source_language, target_language)
    assert found[False] >= 0.98 * 500 and found[True] <= 0.02 * 500
