"""The report in a headless Chromium, driven over a pipe: nothing fails, nothing is fetched, it fits.

`tools/install_system_packages.sh` installs the browser; without one these tests are skipped.
"""

import json
import os
import pathlib
import select
import shutil
import subprocess
import time

import pytest
from test_report import NASTY, write_workdir

from nemocascade_jax import report

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
ANSWER_S = 30.0


class Page:
    """One tab of a browser, spoken to in DevTools messages, each ended by a zero byte."""

    def __init__(self, folder: pathlib.Path):
        """Starts the browser; what it needs to know of itself lies in `folder`."""
        theirs, self._to = os.pipe()
        self._from, answers = os.pipe()
        command = f'exec "$0" "$@" 3<&{theirs} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", command, str(CHROMIUM), *FLAGS, f"--user-data-dir={folder}"],
            pass_fds=(theirs, answers),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(answers)
        self._buffer, self._number, self._session = b"", 0, None
        self.events: list[dict] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for part in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{part}.enable")

    def ask(self, method: str, **params):
        """Returns the answer to one command; what happened meanwhile goes into `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]

    def _next(self) -> dict:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], ANSWER_S)
            assert ready, f"the browser said nothing for {ANSWER_S} s"
            more = os.read(self._from, 1 << 20)
            assert more, "the browser ended"
            self._buffer += more
        line, self._buffer = self._buffer.split(b"\0", 1)
        found = json.loads(line)
        if "method" in found:
            self.events.append(found)
        return found

    def open(self, path: pathlib.Path, width: int = 1400, height: int = 900, scheme: str = "light"):
        """Loads a file at a window's size, in the light or the dark."""
        self.events.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        self.ask("Emulation.setDeviceMetricsOverride", **size)
        scheme_of = [{"name": "prefers-color-scheme", "value": scheme}]
        self.ask("Emulation.setEmulatedMedia", features=scheme_of)
        self.ask("Page.navigate", url=path.as_uri())
        end = time.monotonic() + ANSWER_S
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            assert time.monotonic() < end, "the page was not loaded"
            self._next()

    def js(self, expression: str):
        """Returns the value of an expression in the page."""
        found = self.ask(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def faults(self) -> list:
        """Returns exceptions, and errors and warnings on the console."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event["method"] in kinds]

    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def close(self) -> None:
        os.close(self._to)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._from)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; tools/install_system_packages.sh installs it")
    running = Page(tmp_path_factory.mktemp("browser"))
    yield running
    running.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> pathlib.Path:
    return report.write_report(write_workdir(tmp_path_factory.mktemp("runs") / "tiny"))


def pick(name: str, value: str) -> str:
    """Returns the script that sets a filter as a person does."""
    return (
        f"(() => {{ const box = document.getElementById('filter-{name}'); box.value = {value!r};"
        "box.dispatchEvent(new Event(box.tagName === 'INPUT' ? 'input' : 'change')); })()"
    )


COUNT = "document.getElementById('count').textContent"


def test_page_opens_without_a_fault_or_a_request(page, path):
    page.open(path)
    assert page.faults() == []
    assert [url for url in page.requests() if not url.startswith("data:")] == [path.as_uri()]
    assert page.js("document.title") == "tiny · cascade report"
    assert page.js("document.querySelectorAll('#scores tbody tr').length") == 4
    assert page.js("document.querySelectorAll('figure > svg path').length") > 20
    assert "NaN" not in page.js("document.body.outerHTML.replace(/<script[^]*/, '')")


def test_page_shows_what_the_ledger_says(page, path):
    page.open(path)
    cell = page.js("document.querySelectorAll('#scores tbody tr')[1].cells[2].innerText")
    assert "0.310" in cell
    assert "▼ −0.400" in cell
    assert "below its best" in cell
    assert "recovered" in page.js("document.getElementById('confirmation').innerText")


@pytest.mark.parametrize("width", [390, 1400])
def test_page_never_scrolls_sideways(page, path, width):
    page.open(path, width, 844)
    for stage in range(4):
        page.js(f"document.querySelectorAll('#curves [role=tab]')[{stage}].click()")
        assert page.js("document.documentElement.scrollWidth") <= width
    page.js(pick("text", "word word word"))
    assert page.js("document.documentElement.scrollWidth") <= width
    page.js("document.querySelectorAll('#config details').forEach(part => { part.open = true; })")
    assert page.js("document.documentElement.scrollWidth") <= width
    assert page.faults() == []


def test_filters_leave_the_samples_that_match(page, path):
    page.open(path)
    # 32 steps with rollouts, 4 groups of 4; one sample a step has a failed grader.
    assert page.js(COUNT) == f"{32 * 16} samples in {32 * 4} groups"
    page.js(pick("status", "failed"))
    assert page.js(COUNT) == "32 samples in 32 groups"
    page.js(pick("stage", "mopd"))
    assert page.js(COUNT) == "8 samples in 8 groups"
    page.js(pick("step", "7"))
    assert page.js(COUNT) == "1 samples in 1 groups"
    assert page.js("document.getElementById('pick-0').selectedOptions[0].text") == (
        "sample 3 · failed"
    )
    page.js(pick("status", ""))
    page.js(pick("reward", "between"))
    assert page.js(COUNT) == "4 samples in 4 groups"
    page.js(pick("domain", "math"))
    assert page.js(COUNT) == "1 samples in 1 groups"
    page.js(pick("text", "no such words"))
    assert page.js(COUNT) == "0 samples in 0 groups"
    assert page.faults() == []


def test_two_samples_stand_side_by_side_with_their_differences(page, path):
    page.open(path)
    page.js(pick("domain", "math"))
    page.js(pick("text", "bird is quiet"))
    boxes = "document.querySelectorAll('.pair .tokens')"
    assert page.js(f"{boxes}[0].innerText") == "The answer is 42 and the bird is quiet.<|im_end|>"
    assert page.js(f"{boxes}[1].innerText") == "The answer is 41 and the bird is quiet.<|im_end|>"
    marked = f"[...{boxes}].map(b => [...b.querySelectorAll('.differs')].map(s => s.innerText))"
    assert page.js(marked) == [["2"], ["1"]]
    across = f"[...{boxes}].map(b => b.getBoundingClientRect())"
    assert page.js(f"(([a, b]) => a.right < b.left && Math.abs(a.top - b.top) < 60)({across})")
    assert page.js(f"{boxes}[0].querySelector('b').innerText") == "<|im_end|>"


def test_model_output_stays_text(page, path):
    page.open(path)
    for text in NASTY[:3]:
        page.js(pick("text", text[:24]))
        shown = page.js("document.querySelector('.pair .tokens').innerText")
        assert text[:24] in shown
    assert page.js("document.title") == "tiny · cascade report"
    assert page.js("document.querySelectorAll('img').length") == 0
    assert page.faults() == []


def test_shading_by_teacher_colours_the_tokens(page, path):
    page.open(path)
    page.js(pick("stage", "mopd"))
    page.js("document.getElementById('mode-teacher').click()")
    assert page.js("document.querySelectorAll('.pair .tokens [style*=color-mix]').length") > 5
    page.js(pick("stage", "if_rl"))
    assert page.js("document.getElementById('mode-teacher')") is None


def test_charts_answer_to_keys_and_smoothing(page, path):
    page.open(path)
    lines = "document.querySelectorAll('#curves figure')[0].querySelectorAll('svg path').length"
    before = page.js(lines)
    page.js("document.getElementById('smooth').click()")
    assert page.js(lines) > before
    page.js(
        "(() => { const svg = document.querySelector('#curves figure > svg'); svg.focus();"
        "svg.dispatchEvent(new KeyboardEvent('keydown', {key: 'End'})); })()"
    )
    assert page.js("document.getElementById('tip').innerText").startswith("step 8")


def test_without_a_tokenizer_the_words_are_compared(page, tmp_path):
    root = write_workdir(tmp_path / "unknown")
    config = json.loads((root / "config.json").read_text()) | {"tokenizer": "/nowhere"}
    (root / "config.json").write_text(json.dumps(config))
    page.open(report.write_report(root))
    page.js(pick("domain", "math"))
    page.js(pick("text", "bird is quiet"))
    marked = "[...document.querySelectorAll('.pair .differs')].map(s => s.innerText)"
    assert page.js(marked) == ["42", "41"]
    assert "/nowhere" in page.js("document.getElementById('head').innerText")
    assert page.faults() == []


def test_config_search_finds_a_key(page, path):
    page.open(path)
    page.js(
        "(() => { const box = document.getElementById('config-search'); box.value = 'sampler_gap';"
        "box.dispatchEvent(new Event('input')); })()"
    )
    seen = page.js("[...document.querySelectorAll('.conf .hit')].map(hit => hit.innerText)")
    assert seen == ["max_sampler_gap: 0.0001"] * 3


def test_half_made_run_opens(page, tmp_path):
    root = write_workdir(tmp_path / "half", stages=("sft",))
    (root / "cascade.json").unlink()
    page.open(report.write_report(root), 390, 844, "dark")
    assert page.faults() == []
    assert "cascade.json: not there" in page.js("document.getElementById('head').innerText")
    assert page.js("document.documentElement.scrollWidth") <= 390
