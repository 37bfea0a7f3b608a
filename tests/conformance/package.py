"""Prints the package.json with which a checkout's JavaScript tests are installed: what the package itself and its tests import,
without the tools for browsers and other runtimes, and the newest published SDK beside it."""

import json
import sys
from pathlib import Path

# What tests import or the test runner needs, of all that the checkout develops with.
NEEDED = ("vitest", "msw", "dotenv", "error-stack-parser-es", "typescript", "@types/node", "@types/platform")


def package(theirs: Path, newest: str) -> dict:
    """The content of the package.json."""
    content = json.loads((theirs / "package.json").read_text())
    development = content.get("devDependencies", {})
    return {
        "name": "conformance",
        "private": True,
        "type": "module",
        "dependencies": content.get("dependencies", {}) | content.get("optionalDependencies", {}),
        "devDependencies": {name: development[name] for name in NEEDED if name in development}
        | {"e2b-published": f"npm:e2b@{newest}"},
    }


if __name__ == "__main__":
    print(json.dumps(package(Path(sys.argv[1]), sys.argv[2]), indent=2))
