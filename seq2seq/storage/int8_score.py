"""BLEU of a model in int8 on its validation set, which decides whether int8 is the default precision on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from seq2seq.errors import CheckpointError
from seq2seq.recipe.task import RANGES

MAX_LOSS = 0.3
"""Maximum loss of BLEU on the validation set with which int8 is the default on a CPU."""


@dataclass(frozen=True)
class Int8Score:
    """BLEU in int8 and in the reference precision, of the same sentences with the same search. A bundle's metadata
    contain it under `int8` if the training measured it.

    bleu, reference_bleu: BLEU in int8 and in the reference precision, from 0 to 100. reference_precision: "fp32",
    "bf16" or "fp16". sentences: number of translated validation sentences. signature: sacreBLEU's signature.
    """

    bleu: float
    reference_bleu: float
    reference_precision: str
    sentences: int
    signature: str

    @property
    def loses_too_much(self) -> bool:
        """True if int8 loses more than MAX_LOSS. The difference is rounded, because 30.3 - 30.0 > 0.3 in float64."""
        return round(self.reference_bleu - self.bleu, 6) > MAX_LOSS

    def metadata(self) -> dict[str, Any]:
        """Return the entry of a bundle's metadata."""
        return {"int8": asdict(self)}

    @staticmethod
    def from_metadata(metadata: Mapping[str, Any], where: str) -> Int8Score | None:
        """Return the scores in a bundle's metadata; None if there are none, as in a model that was imported.

        where: name of the metadata in error messages.
        """
        if (entry := metadata.get("int8")) is None:
            return None
        low, high = RANGES["bleu"]
        kinds: dict[str, Any] = {"bleu": (int, float), "reference_bleu": (int, float), "reference_precision": str,
                                 "sentences": int, "signature": str}
        if (isinstance(entry, dict) and entry.keys() == kinds.keys()
                and all(isinstance(entry[name], kind) for name, kind in kinds.items())
                and all(low <= entry[name] <= high for name in ("bleu", "reference_bleu"))):
            return Int8Score(**entry)
        raise CheckpointError(f"{where}: int8 is {entry}, which is not a record of BLEU in int8. Choose a "
                              "precision with --precision, or copy the bundle again from its original location.")

    def __str__(self) -> str:
        return (f"BLEU on the validation set ({self.sentences:,} sentences) is {self.bleu:.2f} in int8 and "
                f"{self.reference_bleu:.2f} in {self.reference_precision}")
