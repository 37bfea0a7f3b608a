"""Sums up what the suites reported, in docs/compatibility.md and .json. Fails when a test failed without a listed reason."""

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import outcomes
from outcomes import CLIENT_ALONE, Outcome, Reason

HERE = Path(__file__).resolve().parent
CATEGORIES = {
    "later": "Later: a feature that this version of Hutch does not have, and says so",
    "internet": "Internet: needs a host that the lab does not have",
    "mock": "Mock: the test replaces the server, or looks into its client, and says nothing about Hutch",
    "suite": "Skipped by the suite itself",
}
SUITES = {
    "python-checkout": ("Python", "checkout"),
    "python-newest": ("Python", "newest"),
    "javascript-checkout": ("JavaScript", "checkout"),
    "javascript-newest": ("JavaScript", "newest"),
    "interpreter-python": ("code interpreter, Python", "checkout"),
    "interpreter-javascript": ("code interpreter, JavaScript", "checkout"),
}


def say(text: str) -> None:
    print(f"[conformance] {text}", file=sys.stderr, flush=True)


def collect(results: Path) -> dict[str, list[Outcome]]:
    """The outcomes of each suite that ran, with areas and reasons."""
    ended = json.loads((results / "ended.json").read_text())
    table = outcomes.reasons()
    for reason in table:
        if reason.category not in CATEGORIES:
            raise SystemExit(f"reasons.toml has an unknown category {reason.category!r}")
    collected = {}
    for client in [name for name in SUITES if name in ended]:
        found = outcomes.read(results, client)
        # 1: tests failed. Beyond that, the runner itself did.
        if ended[client] not in (0, 1) or not found:
            raise SystemExit(f"{client} did not run to its end; its output is in {results / client}.log")
        for outcome in found:
            outcome.area = outcomes.area_of(outcome.test)
        for outcome in found:
            if outcome.status != "passed":
                outcome.reason = next((reason for reason in table if reason.explains(outcome)), None)
                if outcome.reason is None and outcome.own_words:
                    outcome.reason = Reason("suite", outcome.own_words, [], [])
        collected[client] = found
    return collected


def check(collected: dict[str, list[Outcome]]) -> bool:
    """Tells what the tables do not explain, and what they list for nothing; false when a test failed without a reason."""
    everything = [outcome for found in collected.values() for outcome in found]
    table = outcomes.reasons()
    for reason in table:
        for pattern in reason.tests:
            listed = [o for o in everything if Reason("", "", [], [pattern], reason.clients, reason.unless).covers(o)]
            ran = {o.client for o in everything if o.test.split("/", 1)[0] == pattern.split("/", 1)[0]}
            if reason.clients:
                ran &= set(reason.clients)
            if ran and not listed:
                say(f"listed, but there is no such test: {pattern}")
            for outcome in listed:
                if outcome.status == "passed":
                    say(f"listed, but it passes with {outcome.client}: {outcome.test}")
    unexplained = [o for o in everything if o.status != "passed" and o.reason is None]
    for outcome in unexplained:
        words = [line.strip() for line in outcome.text.splitlines() if line.startswith("E  ") or "Error" in line]
        say(f"NO REASON: {outcome.client}: {outcome.test}: {' '.join(words or [outcome.text.strip()])[:300]}")
    return not unexplained


def figures(found: list[Outcome]) -> tuple[int, int, int]:
    count = Counter(outcome.status for outcome in found)
    return count["passed"], count["failed"], count["skipped"]


def cell(found: list[Outcome]) -> str:
    return " / ".join(map(str, figures(found))) if found else "–"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def summary(collected: dict[str, list[Outcome]], versions: dict[str, str], clients: list[str]) -> list[str]:
    """The table of areas."""
    names = list(dict.fromkeys([name for name, _ in outcomes.areas() if name != CLIENT_ALONE] + [CLIENT_ALONE]))
    head = [f"{SUITES[c][0]} {versions[c]}" for c in clients]
    lines = [row("area", *head, "what did not pass"), "|---" * (len(clients) + 2) + "|"]
    for name in names:
        cells = [[o for o in collected[c] if o.area == name] for c in clients]
        if any(cells):
            lines.append(row(name, *map(cell, cells), why([o for found in cells for o in found])))
    lines.append(row("**all**", *(cell(collected[c]) for c in clients), ""))
    return lines


def why(found: list[Outcome]) -> str:
    """The reasons in an area, in a few words."""
    words = defaultdict(list)
    for outcome in found:
        if outcome.status != "passed":
            category = outcome.reason.category if outcome.reason else "no reason"
            what = outcome.reason.what if outcome.reason else outcome.test
            if what not in words[category]:
                words[category].append(what)
    return "; ".join(f"{category}: {', '.join(whats)}" for category, whats in words.items())


def details(collected: dict[str, list[Outcome]], versions: dict[str, str]) -> list[str]:
    """Every test that did not pass, under its reason."""
    lines = []
    for category, title in CATEGORIES.items():
        whats = defaultdict(lambda: defaultdict(list))
        for client, found in collected.items():
            for outcome in found:
                if outcome.status != "passed" and outcome.reason and outcome.reason.category == category:
                    whats[outcome.reason.what][outcome.test].append(client)
        if not whats:
            continue
        lines += [f"### {title}", ""]
        for what, tests in whats.items():
            total = sum(map(len, tests.values()))
            lines += [f"**{what}** ({total} {'time' if total == 1 else 'times'})", ""]
            lines += compact(tests, versions)
            lines.append("")
    return lines


def compact(tests: dict[str, list[str]], versions: dict[str, str]) -> list[str]:
    """One line for each file: its tests and, where not all clients of the language are meant, which."""
    files = defaultdict(list)
    for test, clients in tests.items():
        file, name = test.split("::", 1)
        files[file, tuple(dict.fromkeys(clients))].append(name.replace("|", "\\|"))
    lines = []
    for (file, clients), names in sorted(files.items()):
        shown = ", ".join(versions[client] for client in clients)
        lines.append(f"- `{file}` ({shown}): {'; '.join(names)}")
    return lines


def machine_readable(collected: dict[str, list[Outcome]], versions: dict[str, str], commit: str) -> dict:
    def counts(found: list[Outcome]) -> dict[str, int]:
        return dict(zip(("passed", "failed", "skipped"), figures(found), strict=True))

    return {
        "commit": commit,
        "suites": {
            client: {
                "version": versions[client],
                **counts(found),
                "areas": {
                    area: counts([o for o in found if o.area == area]) for area in dict.fromkeys(o.area for o in found)
                },
            }
            for client, found in collected.items()
        },
        "not_passed": [
            {
                "suite": outcome.client,
                "test": outcome.test,
                "area": outcome.area,
                "status": outcome.status,
                "category": outcome.reason.category if outcome.reason else None,
                "reason": outcome.reason.what if outcome.reason else None,
            }
            for found in collected.values()
            for outcome in found
            if outcome.status != "passed"
        ],
    }


def as_text(content: dict) -> str:
    """JSON with a line for each suite and each test, so that changes show."""

    def line(value: object) -> str:
        return json.dumps(value, ensure_ascii=False)

    suites = ",\n".join(f"  {line(name)}: {line(suite)}" for name, suite in content["suites"].items())
    tests = ",\n".join(f"  {line(test)}" for test in content["not_passed"])
    head = f' "commit": {line(content["commit"])},\n "suites": {{\n{suites}\n }},\n'
    return f'{{\n{head} "not_passed": [\n{tests}\n ]\n}}\n'


def page(collected: dict[str, list[Outcome]], versions: dict[str, str], commit: str) -> str:
    """The page for people: page.md with the figures put in."""
    sdk = [client for client in collected if not client.startswith("interpreter")]
    interpreter = [client for client in collected if client.startswith("interpreter")]
    code = ["The code interpreter's own suites were not part of this run."]
    if interpreter:
        code = summary(collected, versions, interpreter)
    clients = [
        row(f"{SUITES[c][0]} SDK", versions[c], "the checkout's source" if c.endswith("checkout") else "published package, the newest")
        for c in sdk
    ]
    values = {
        "commit": commit,
        "clients": "\n".join(clients),
        "results": "\n".join(summary(collected, versions, sdk)),
        "interpreter": "\n".join(code),
        "details": "\n".join(details(collected, versions)).rstrip(),
    }
    text = (HERE / "page.md").read_text()
    for name, value in values.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", required=True, type=Path)
    parser.add_argument("--commit", required=True)
    for client in SUITES:
        parser.add_argument(f"--{client}", default="", help="version")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    versions = {client: getattr(options, client.replace("-", "_")) for client in SUITES}
    collected = collect(options.results)
    is_explained = check(collected)
    for client, found in collected.items():
        passed, failed, skipped = figures(found)
        say(f"{client} {versions[client]}: {passed} passed, {failed} failed, {skipped} skipped")
    if options.json:
        options.json.write_text(as_text(machine_readable(collected, versions, options.commit)))
    if options.markdown:
        options.markdown.write_text(page(collected, versions, options.commit))
    if not is_explained:
        say("error: tests failed without a reason in tests/conformance/reasons.toml")
    return 0 if is_explained else 1


if __name__ == "__main__":
    sys.exit(main())
