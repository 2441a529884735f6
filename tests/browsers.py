"""Chromium without a window."""

import shutil

import pytest


def start_browser(language="en"):
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("chromium or chromedriver is not installed")
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=1200,900",
                     f"--lang={language}", f"--accept-lang={language}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
