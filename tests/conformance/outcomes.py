"""What test runners reported, in one form, and why tests did not pass, from the committed tables."""

import fnmatch
import json
import re
import tomllib
import xml.etree.ElementTree as tree
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# The area of tests that no pattern names: they never talk to a server.
CLIENT_ALONE = "tests of the client alone"


@dataclass
class Outcome:
    """How one test ended with one client."""

    client: str
    # `python/sync/…/test_x.py::test_y`, `javascript/…/x.test.ts::describe test`.
    test: str
    status: str
    # What the runner says about a test that did not pass.
    text: str = ""
    area: str = ""
    # The reason from the table, or the words with which the suite skips it.
    reason: "Reason | None" = None
    own_words: str = ""


@dataclass
class Reason:
    """Why tests do not pass. Holds only while their failure says one of `says`."""

    category: str
    what: str
    says: list[str]
    tests: list[str]
    clients: list[str] = field(default_factory=list)
    unless: list[str] = field(default_factory=list)

    def covers(self, outcome: Outcome) -> bool:
        """Whether the test is listed, however it ended."""
        return (
            (not self.clients or outcome.client in self.clients)
            and any(matches(outcome.test, pattern) for pattern in self.tests)
            and not any(matches(outcome.test, pattern) for pattern in self.unless)
        )

    def explains(self, outcome: Outcome) -> bool:
        return self.covers(outcome) and any(words in outcome.text for words in self.says)


def matches(test: str, pattern: str) -> bool:
    """Glob patterns in which brackets stand for themselves, as test names have them."""
    return fnmatch.fnmatchcase(test, pattern.replace("[", "[[]"))


def read(results: Path, client: str) -> list[Outcome]:
    """The outcomes of a suite; none when it left no report."""
    language = client.removesuffix("-checkout").removesuffix("-newest")
    if (report := results / f"{client}.xml").exists():
        return [_pytest(client, language, case) for case in tree.parse(report).iter("testcase")]
    if (report := results / f"{client}.json").exists():
        return [
            outcome
            for file in json.loads(report.read_text())["testResults"]
            for outcome in _vitest(client, language, file)
        ]
    return []


def _pytest(client: str, language: str, case: tree.Element) -> Outcome:
    found = next((case.find(kind) for kind in ("error", "failure", "skipped") if case.find(kind) is not None), None)
    file = (case.get("file") or case.get("classname") or "").removeprefix("tests/")
    test = f"{language}/{file}::{case.get('name')}"
    if found is None:
        return Outcome(client, test, "passed")
    text = f"{found.get('message') or ''}\n{found.text or ''}"
    if found.tag == "skipped":
        return Outcome(client, test, "skipped", text, own_words=found.get("message") or "")
    return Outcome(client, test, "failed", text)


def _vitest(client: str, language: str, file: dict) -> list[Outcome]:
    name = f"{language}/{file['name'].rsplit('/tests/', 1)[-1]}"
    outcomes = []
    for case in file["assertionResults"]:
        status = {"passed": "passed", "failed": "failed"}.get(case["status"], "skipped")
        text = _COLOUR.sub("", "\n".join(case.get("failureMessages") or []))
        words = "the suite skips it" if status == "skipped" else ""
        outcomes.append(Outcome(client, f"{name}::{case['fullName'].strip()}", status, text, own_words=words))
    if not outcomes and file["status"] != "passed":
        outcomes.append(Outcome(client, f"{name}::the whole file", "failed", _COLOUR.sub("", file.get("message", ""))))
    return outcomes


def areas() -> list[tuple[str, list[str]]]:
    """Names of the areas, in the order in which they are shown, and patterns of their tests' files."""
    table = tomllib.loads((HERE / "areas.toml").read_text())
    return [(area["name"], area["files"]) for area in table["area"]]


def area_of(test: str) -> str:
    file = test.split("::", 1)[0]
    for name, patterns in areas():
        if any(matches(file, pattern) for pattern in patterns):
            return name
    return CLIENT_ALONE


def reasons() -> list[Reason]:
    table = tomllib.loads((HERE / "reasons.toml").read_text())
    return [Reason(**reason) for reason in table["reason"]]
