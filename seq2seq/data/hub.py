"""The Hugging Face hub: a request that tells quickly whether it can be reached. Its libraries try again for minutes."""

from __future__ import annotations

import os
import time
from threading import Thread
from urllib.parse import quote

ANSWER_SECONDS = 4.0
"""Maximum time to wait for an answer, which includes the search for the address of the hub."""
REMEMBERED_SECONDS = 60.0
"""Time during which a hub that was not reached is not asked again, so that ten data sets do not wait ten times."""
UNAVAILABLE = (500, 502, 503, 504)
_faults: dict[str, tuple[float, str]] = {}
"""Time and result of the last request that failed, by address of the hub."""


def hub_fault(path: str) -> str:
    """Return why the hub cannot be reached, and what to do; "" if it answers.

    With HF_HUB_OFFLINE=1 or HF_DATASETS_OFFLINE=1, the libraries of the hub use only what they have downloaded before,
    so it is not asked.

    path: path of the data set or model in the hub's API, such as `datasets/wmt/wmt14`.
    """
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE or os.environ.get("HF_DATASETS_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return ""
    asked, fault = _faults.get(endpoint, (0.0, ""))
    if not fault or time.monotonic() - asked > REMEMBERED_SECONDS:
        fault = _fault_of(f"{endpoint}/api/{quote(path)}")
        _faults[endpoint] = time.monotonic(), fault
    if not fault:
        return ""
    return (f"{endpoint} cannot be reached: {fault}. Check the network connection. To use what was downloaded to this "
            "machine before, set the environment variable HF_HUB_OFFLINE=1.")


def _fault_of(url: str) -> str:
    """Return why there is no answer to a request; "" if there is one, such as that the page does not exist."""
    # The session of the library has its proxies and certificates. Its timeouts do not limit the search for the address
    # of the hub, nor the number of its addresses, so the request has a thread of its own.
    from huggingface_hub.utils import get_session

    found: list[str] = []

    def ask() -> None:
        try:
            status = get_session().head(url, timeout=ANSWER_SECONDS).status_code
            found.append(f"its answer has the status {status}" if status in UNAVAILABLE else "")
        except Exception as error:                                              # depends on the version of the library
            found.append(str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__)

    thread = Thread(target=ask, daemon=True)
    thread.start()
    thread.join(ANSWER_SECONDS)
    return found[0] if found else f"there was no answer within {ANSWER_SECONDS:g} seconds"
