"""Has a WebSocket echo texts, bytes and a message of many fragments. Arguments: URL, address, file of the authority."""
import asyncio
import os
import ssl
import sys
from urllib.parse import urlsplit

import websockets


async def main(url, address, authority):
    context = ssl.create_default_context(cafile=authority)
    async with websockets.connect(url, host=address, ssl=context, server_hostname=urlsplit(url).hostname, max_size=None) as socket:
        for message in ["text", "", b"", os.urandom(4 << 20)]:
            await socket.send(message)
            assert await socket.recv() == message
        await socket.send(str(n) for n in range(1000))
        assert await socket.recv() == "".join(str(n) for n in range(1000))
        await (await socket.ping())
    assert socket.close_code == 1000, socket.close_code
    print("echoed")


asyncio.run(main(*sys.argv[1:]))
