"""One tool call with version 2 of the Python SDK: a JSON line per event; exit 0 result, 3 tool error, 4 other error.

python client_v2.py --url URL --era legacy|modern --tool NAME --args JSON [--bearer TOKEN] [--timeout MS]
"""

import asyncio
import json

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client

from common import Events, options

o = options()


async def main(events: Events) -> int:
    transport = streamable_http_client(o.url, http_client=create_mcp_http_client(headers=o.headers))
    async with Client(transport, mode="2026-07-28" if o.era == "modern" else "legacy") as client:
        events.say("connected", protocol=client.protocol_version)
        events.say("tools", names=[t.name for t in (await client.list_tools()).tools])
        events.begin()
        async with events.failing():
            r = await client.call_tool(
                o.tool, json.loads(o.args), read_timeout_seconds=o.patience, progress_callback=events.progress
            )
        return events.result(r.is_error, r.content)


events = Events()
with events.errors():
    raise SystemExit(asyncio.run(main(events)))
