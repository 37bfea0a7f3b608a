"""The asynchronous client."""

import asyncio

from e2b import AsyncSandbox

from support.fixtures import RUN


def test_sandboxes_at_a_time_with_commands_files_and_terminals(server):
    async def one(number: int) -> None:
        sandbox = await AsyncSandbox.create(timeout=120, metadata={"run": RUN}, **server.sdk())
        try:
            assert await sandbox.is_running()
            await sandbox.files.write("n.txt", str(number))
            result = await sandbox.commands.run("cat n.txt; sleep 0.2; echo; echo end")
            assert result.stdout == f"{number}\nend\n"
            handle = await sandbox.commands.run("cat", background=True, stdin=True)
            await sandbox.commands.send_stdin(handle.pid, "to the cat")
            await sandbox.commands.close_stdin(handle.pid)
            assert (await handle.wait()).stdout == "to the cat"
        finally:
            assert await sandbox.kill()

    async def all_of_them() -> None:
        await asyncio.gather(*(one(number) for number in range(6)))

    asyncio.run(all_of_them())


def test_a_folder_is_watched_by_a_stream(server):
    async def watch() -> None:
        sandbox = await AsyncSandbox.create(timeout=120, metadata={"run": RUN}, **server.sdk())
        try:
            seen = asyncio.Event()
            await sandbox.files.make_dir("/home/user/watched")
            handle = await sandbox.files.watch_dir(
                "/home/user/watched", on_event=lambda event: seen.set() if event.name == "x.txt" else None
            )
            await sandbox.files.write("/home/user/watched/x.txt", "x")
            await asyncio.wait_for(seen.wait(), 15)
            await handle.stop()
        finally:
            await sandbox.kill()

    asyncio.run(watch())
