"""One tool call with version 1 of the Python SDK: a JSON line per event; exit 0 result, 3 tool error, 4 other error.

python client_v1.py --url URL --tool NAME --args JSON [--bearer TOKEN] [--timeout MS]
"""

import asyncio
import json
from datetime import timedelta

from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client

from common import Events, options

o = options()


def transport():
    return (sse_client if o.era == "sse" else streamablehttp_client)(o.url, headers=o.headers)


async def main(events: Events) -> int:
    async with (
        transport() as streams,
        ClientSession(streams[0], streams[1]) as session,
    ):
        init = await session.initialize()
        events.say("connected", protocol=init.protocolVersion)
        events.say("tools", names=[t.name for t in (await session.list_tools()).tools])
        events.begin()
        patience = timedelta(seconds=o.patience) if o.patience else None
        async with events.failing():
            r = await session.call_tool(
                o.tool, json.loads(o.args), read_timeout_seconds=patience, progress_callback=events.progress
            )
        return events.result(r.isError, r.content)


events = Events()
with events.errors():
    raise SystemExit(asyncio.run(main(events)))
