"""A client with version 2 of the Python SDK: a JSON line per event; exit 0 result, 3 tool error, 4 other error.

python client_v2.py --url URL --era legacy|modern --tool NAME --args JSON [--bearer TOKEN] [--timeout MS]
python client_v2.py --url URL --era legacy|modern --plan JSON [--bearer TOKEN]
"""

import asyncio
import contextlib
import json

from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.types import (
    CreateMessageResult,
    ElicitResult,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    TextContent,
    ToolListChangedNotification,
)

from common import Events, Plan, options

o = options()
modern = o.era == "modern"


class V2(Plan):
    """How a plan is done with this version of the SDK."""

    client: Client

    def callbacks(self) -> dict:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "message_handler": self.message,
        }

    async def elicit(self, context, params) -> ElicitResult:
        self.ask(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context, params) -> CreateMessageResult:
        self.ask(params.messages[0].content.text)
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="42"), model="m")

    async def message(self, message) -> None:
        match message:
            case ResourceUpdatedNotification():
                self.hear(message.params.uri)
            case PromptListChangedNotification():
                self.hear("prompts")
            case ToolListChangedNotification():
                self.hear("tools")
            case ResourceListChangedNotification():
                self.hear("resources")

    async def call(self, step, progress=None) -> tuple:
        r = await self.client.call_tool(step["tool"], step.get("args"), progress_callback=progress)
        return r.is_error, r.content

    async def names(self, what) -> list:
        r = await getattr(self.client, "list_" + what)()
        return [x.name for x in getattr(r, what)]

    @contextlib.asynccontextmanager
    async def subscribed(self, uri):
        if modern:
            async with self.client.listen(resource_subscriptions=[uri]) as events:
                yield anext(events)
            return
        await self.client.subscribe_resource(uri)
        yield self.heard(uri)
        await self.client.unsubscribe_resource(uri)

    @contextlib.asynccontextmanager
    async def changing(self, what):
        if modern:
            async with self.client.listen(**{what + "_list_changed": True}) as events:
                yield anext(events)
            return
        yield self.heard(what)


async def all_tools(client) -> list[str]:
    page = await client.list_tools()
    names = [t.name for t in page.tools]
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        names += [t.name for t in page.tools]
    return names


async def main(events: Events) -> int:
    transport = streamable_http_client(o.url, http_client=create_mcp_http_client(headers=o.headers))
    plan = V2(events)
    async with Client(
        transport, mode="2026-07-28" if modern else "legacy", **(plan.callbacks() if o.plan else {})
    ) as client:
        events.say("connected", protocol=client.protocol_version)
        events.say("tools", names=await all_tools(client))
        events.begin()
        if o.plan:
            plan.client = client
            return await plan.carry_out(json.loads(o.plan))
        async with events.failing():
            r = await client.call_tool(
                o.tool, json.loads(o.args), read_timeout_seconds=o.patience, progress_callback=events.progress
            )
        return events.result(r.is_error, r.content)


events = Events()
with events.errors():
    raise SystemExit(asyncio.run(main(events)))
