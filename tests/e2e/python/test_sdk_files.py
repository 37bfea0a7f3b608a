"""Files."""

import gzip
import hashlib
import io
import os

import httpx
import pytest
from e2b import FileType, InvalidArgumentException, NotFoundException
from e2b.sandbox.filesystem.filesystem import WriteEntry

from support.wait import wait_for


def test_what_is_written_is_read_back_as_text_bytes_and_stream(shared, folder):
    path = f"{folder}/text.txt"
    info = shared.files.write(path, "Grüße\n")
    assert (info.name, info.path) == ("text.txt", path)
    assert shared.files.read(path) == "Grüße\n"
    assert bytes(shared.files.read(path, format="bytes")) == "Grüße\n".encode()
    assert b"".join(shared.files.read(path, format="stream")) == "Grüße\n".encode()


def test_binary_data_is_unharmed(shared, folder):
    data = os.urandom(3_000_017)
    shared.files.write(f"{folder}/random", data)
    assert (
        hashlib.sha256(shared.files.read(f"{folder}/random", format="bytes")).digest() == hashlib.sha256(data).digest()
    )
    inside = shared.commands.run(f"sha256sum {folder}/random").stdout.split()[0]
    assert inside == hashlib.sha256(data).hexdigest()


def test_a_file_object_is_written(shared, folder):
    shared.files.write(f"{folder}/stream", io.BytesIO(b"0123456789" * 100_000))
    assert shared.files.get_info(f"{folder}/stream").size == 1_000_000


def test_writing_truncates_and_makes_the_folders(shared, folder):
    path = f"{folder}/a/b/c.txt"
    shared.files.write(path, "long text")
    shared.files.write(path, "s")
    assert shared.files.read(path) == "s"
    assert shared.commands.run(f"stat -c '%U %a' {folder}/a/b {path}").stdout == "user 755\nuser 644\n"


def test_several_files_in_one_request(shared, folder):
    entries = [WriteEntry(path=f"{folder}/{n}.txt", data=f"number {n}") for n in range(5)]
    written = shared.files.write_files(entries)
    assert sorted(info.name for info in written) == [f"{n}.txt" for n in range(5)]
    for n in range(5):
        assert shared.files.read(f"{folder}/{n}.txt") == f"number {n}"


def test_empty_files_and_odd_names(shared, folder):
    for name in ["empty", "with space", "ünïcode-🐇", "quote'\"", "percent%20&plus+"]:
        shared.files.write(f"{folder}/{name}", "")
        assert shared.files.exists(f"{folder}/{name}"), name
        assert shared.files.read(f"{folder}/{name}") == ""
    assert len(shared.files.list(folder)) == 5


def test_relative_paths_and_the_home_folder(shared):
    shared.files.write("relative.txt", "r")
    assert shared.files.read("/home/user/relative.txt") == "r"
    assert shared.files.read("~/relative.txt") == "r"
    shared.files.write("mine.txt", "root's", user="root")
    assert shared.files.read("/root/mine.txt", user="root") == "root's"
    assert shared.commands.run("stat -c %U /root/mine.txt", user="root").stdout == "root\n"


def test_missing_files_and_wrong_kinds(shared, folder):
    with pytest.raises(NotFoundException):
        shared.files.read(f"{folder}/missing")
    with pytest.raises(NotFoundException):
        shared.files.get_info(f"{folder}/missing")
    with pytest.raises(NotFoundException):
        shared.files.list(f"{folder}/missing")
    with pytest.raises(NotFoundException):
        shared.files.rename(f"{folder}/missing", f"{folder}/new")
    with pytest.raises(InvalidArgumentException):
        shared.files.read(folder)
    with pytest.raises(InvalidArgumentException):
        shared.files.write(folder, "a folder is in the way")
    shared.files.write(f"{folder}/file", "")
    with pytest.raises(InvalidArgumentException):
        shared.files.list(f"{folder}/file")
    with pytest.raises(InvalidArgumentException):
        shared.files.make_dir(f"{folder}/file")
    assert not shared.files.exists(f"{folder}/missing")


def test_folders_are_listed_to_a_depth(shared, folder):
    for path in ["a/one.txt", "a/b/two.txt", "a/b/c/three.txt", "top.txt"]:
        shared.files.write(f"{folder}/{path}", path)
    names = {entry.path.removeprefix(folder): entry.type for entry in shared.files.list(folder)}
    assert names == {"/a": FileType.DIR, "/top.txt": FileType.FILE}
    paths = [entry.path.removeprefix(folder) for entry in shared.files.list(folder, depth=3)]
    assert sorted(paths) == ["/a", "/a/b", "/a/b/c", "/a/b/two.txt", "/a/one.txt", "/top.txt"]


def test_what_is_known_of_an_entry(shared, folder):
    shared.files.write(f"{folder}/file.sh", "12345")
    shared.commands.run(f"chmod 750 {folder}/file.sh && ln -s file.sh {folder}/link")
    info = shared.files.get_info(f"{folder}/file.sh")
    assert (info.name, info.path, info.size) == ("file.sh", f"{folder}/file.sh", 5)
    assert (info.owner, info.group, info.type) == ("user", "user", FileType.FILE)
    assert info.mode == 0o750 and info.permissions == "-rwxr-x---"
    assert shared.files.get_info(f"{folder}/link").symlink_target == f"{folder}/file.sh"
    assert shared.files.get_info(folder).type == FileType.DIR


def test_folders_are_made_once(shared, folder):
    assert shared.files.make_dir(f"{folder}/x/y/z")
    assert not shared.files.make_dir(f"{folder}/x/y/z")
    assert shared.commands.run(f"stat -c %U {folder}/x/y/z").stdout == "user\n"


def test_rename_and_remove(shared, folder):
    shared.files.write(f"{folder}/old", "content")
    assert shared.files.rename(f"{folder}/old", f"{folder}/sub/new").path == f"{folder}/sub/new"
    assert not shared.files.exists(f"{folder}/old")
    assert shared.files.read(f"{folder}/sub/new") == "content"
    shared.files.remove(f"{folder}/sub")
    assert not shared.files.exists(f"{folder}/sub")


def test_what_is_made_belongs_to_whoever_asks(shared, folder):
    shared.files.write(f"{folder}/sub/mine", "x")
    shared.files.write(f"{folder}/roots", "x", user="root")
    shared.files.make_dir(f"{folder}/dir/deep")
    shared.files.make_dir(f"{folder}/rootdir", user="root")
    shared.files.write(f"{folder}/roots2", "x", user="root")
    # Who writes a file last owns it.
    shared.files.write(f"{folder}/roots2", "y")
    listed = shared.commands.run(f"cd {folder} && stat -c '%n %U:%G %a' sub sub/mine roots dir/deep rootdir roots2").stdout
    assert listed.splitlines() == [
        "sub user:user 755",
        "sub/mine user:user 644",
        "roots root:root 644",
        "dir/deep user:user 755",
        "rootdir root:root 755",
        "roots2 user:user 644",
    ]
    info = shared.files.get_info(f"{folder}/roots")
    assert (info.owner, info.group, info.permissions) == ("root", "root", "-rw-r--r--")


def test_a_link_is_shown_by_where_it_leads(shared, folder):
    shared.files.write(f"{folder}/real", "x")
    shared.commands.run(f"cd {folder} && ln -s real link && ln -s nowhere dead")
    link = shared.files.get_info(f"{folder}/link")
    assert (link.type, link.symlink_target) == (FileType.FILE, f"{folder}/real")
    assert [entry.name for entry in shared.files.list(folder)] == ["link", "real"]


def test_a_file_beyond_two_gibibytes_comes_through_every_layer_unharmed(create, server, api):
    sandbox = create()
    size = (2 << 30) + 777
    # Holes take no space and little time; marks show that nothing has moved.
    made = f"truncate -s {size} f; for at in 0 65536 2147483640 {size - 8}; do echo 8bytes.. | dd of=f bs=1 seek=$at conv=notrunc count=8 2>&-; done"
    wanted = sandbox.commands.run(f"cd /tmp; {made}; sha256sum f | cut -d' ' -f1", timeout=120).stdout.strip()
    headers = {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": api.get(f"/sandboxes/{sandbox.sandbox_id}").json()["envdAccessToken"],
    }
    digest, length = hashlib.sha256(), 0
    with (
        httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=180) as client,
        client.stream("GET", "/files", params={"path": "/tmp/f"}, headers={"Accept-Encoding": "identity"}) as answer,
    ):
        assert answer.headers["content-length"] == str(size)
        for chunk in answer.iter_raw(1 << 20):
            digest.update(chunk)
            length += len(chunk)
    assert (length, digest.hexdigest()) == (size, wanted)


def test_compressed_both_ways(shared, folder):
    text = "compress me " * 50_000
    shared.files.write(f"{folder}/zipped", text, gzip=True)
    assert shared.files.read(f"{folder}/zipped") == text
    assert shared.files.read(f"{folder}/zipped", gzip=True) == text
    assert shared.files.get_info(f"{folder}/zipped").size == len(text)


def test_octet_streams(shared, folder):
    shared.files.write(f"{folder}/octets", b"\x00\xff" * 500, use_octet_stream=True)
    assert bytes(shared.files.read(f"{folder}/octets", format="bytes")) == b"\x00\xff" * 500


def test_signed_addresses_work_without_a_token_until_they_expire(shared, folder, server):
    path = f"{folder}/signed.txt"
    # The one address of all sandboxes: the signature alone says which one is meant.
    with httpx.Client(trust_env=False) as client:
        upload = client.post(shared.upload_url(path, use_signature_expiration=60), files={"file": b"uploaded"})
        assert upload.status_code == 200, upload.text
        download = client.get(shared.download_url(path, use_signature_expiration=60))
        assert (download.status_code, download.text) == (200, "uploaded")
        expired = client.get(shared.download_url(path, use_signature_expiration=-10))
        assert expired.status_code == 401
        url = shared.download_url(path)
        assert client.get(url.replace("signature=v1_", "signature=v1_x")).status_code == 401
        routed = {"E2b-Sandbox-Id": shared.sandbox_id, "E2b-Sandbox-Port": "49983"}
        assert client.get(shared.download_url(path), headers=routed).text == "uploaded"
        assert client.get(f"{server.url}/files", params={"path": path}, headers=routed).status_code == 401


def test_parts_of_a_file_and_encodings_over_http(shared, folder, server, api):
    shared.files.write(f"{folder}/range.txt", "0123456789")
    headers = {
        "E2b-Sandbox-Id": shared.sandbox_id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": api.get(f"/sandboxes/{shared.sandbox_id}").json()["envdAccessToken"],
    }
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        query = {"path": f"{folder}/range.txt"}
        part = client.get("/files", params=query, headers={"Range": "bytes=2-5"})
        assert (part.status_code, part.text) == (206, "2345")
        zipped = client.get("/files", params=query, headers={"Accept-Encoding": "gzip"})
        assert (zipped.headers["content-encoding"], zipped.text) == ("gzip", "0123456789")
        body = gzip.compress(b"sent compressed")
        sent = client.post(
            "/files",
            params={"path": f"{folder}/sent.txt"},
            content=body,
            headers={"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"},
        )
        assert sent.status_code == 200, sent.text
        wrong = client.post("/files", params=query, content=b"x", headers={"Content-Type": "text/plain"})
        assert wrong.status_code == 400
    assert shared.files.read(f"{folder}/sent.txt") == "sent compressed"


def test_changes_of_a_folder_are_watched(shared, folder):
    handle = shared.files.watch_dir(folder, recursive=True)
    shared.files.write(f"{folder}/new.txt", "x")
    shared.commands.run(f"mkdir -p {folder}/deep/er && touch {folder}/deep/er/file")
    seen = set()

    def all_seen():
        seen.update(event.name for event in handle.get_new_events())
        return {"new.txt", "deep", "deep/er/file"} <= seen

    wait_for("the events", all_seen)
    handle.stop()
