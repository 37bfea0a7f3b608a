"""A program as a user writes it: everything that it knows of the server is in the environment."""

import json
import time
import urllib.request

from e2b import Sandbox

sandbox = Sandbox.create(timeout=60)
try:
    said = sandbox.commands.run("echo hello from $(whoami)").stdout.strip()
    sandbox.files.write("/home/user/note.txt", "a note")
    note = sandbox.files.read("/home/user/note.txt")
    sandbox.commands.run("cd /home/user && python3 -m http.server 8000 --bind 127.0.0.1", background=True)
    host = sandbox.get_host(8000)
    deadline = time.monotonic() + 20
    while True:
        try:
            page = urllib.request.urlopen(f"https://{host}/note.txt", timeout=10).read().decode()
            break
        except urllib.error.HTTPError:
            # Not started yet: the edge says so with a status.
            assert time.monotonic() < deadline
            time.sleep(0.1)
    signed = urllib.request.urlopen(sandbox.download_url("/home/user/note.txt"), timeout=10).read().decode()
    print(json.dumps({"said": said, "note": note, "host": host, "page": page, "signed": signed}))
finally:
    sandbox.kill()
