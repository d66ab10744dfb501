"""A client with version 1 of the Python SDK: a JSON line per event; exit 0 result, 3 tool error, 4 other error.

python client_v1.py --url URL [--era sse] --tool NAME --args JSON [--bearer TOKEN] [--timeout MS]
python client_v1.py --url URL [--era sse] --plan JSON [--bearer TOKEN]
"""

import asyncio
import contextlib
import json
from datetime import timedelta

import mcp.types as types
from mcp import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamablehttp_client
from pydantic import AnyUrl

from common import Events, Plan, options

o = options()


class V1(Plan):
    """How a plan is done with this version of the SDK."""

    session: ClientSession

    def callbacks(self) -> dict:
        return {
            "elicitation_callback": self.elicit,
            "sampling_callback": self.sample,
            "message_handler": self.message,
        }

    async def elicit(self, context, params) -> types.ElicitResult:
        self.ask(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(self, context, params) -> types.CreateMessageResult:
        self.ask(params.messages[0].content.text)
        answer = types.TextContent(type="text", text="42")
        return types.CreateMessageResult(role="assistant", content=answer, model="m")

    async def message(self, message) -> None:
        match message:
            case types.ServerNotification(root=types.ResourceUpdatedNotification() as n):
                self.hear(str(n.params.uri))
            case types.ServerNotification(root=types.PromptListChangedNotification()):
                self.hear("prompts")
            case types.ServerNotification(root=types.ToolListChangedNotification()):
                self.hear("tools")
            case types.ServerNotification(root=types.ResourceListChangedNotification()):
                self.hear("resources")

    async def call(self, step, progress=None) -> tuple:
        r = await self.session.call_tool(step["tool"], step.get("args"), progress_callback=progress)
        return r.isError, r.content

    async def names(self, what) -> list:
        r = await getattr(self.session, "list_" + what)()
        return [x.name for x in getattr(r, what)]

    @contextlib.asynccontextmanager
    async def subscribed(self, uri):
        await self.session.subscribe_resource(AnyUrl(uri))
        yield self.heard(uri)
        await self.session.unsubscribe_resource(AnyUrl(uri))

    @contextlib.asynccontextmanager
    async def changing(self, what):
        yield self.heard(what)

    async def do_cancel(self, step) -> dict:
        return {"cannot": "the SDK tells the server nothing when its caller gives up"}


def transport():
    return (sse_client if o.era == "sse" else streamablehttp_client)(o.url, headers=o.headers)


async def all_tools(session) -> list[str]:
    page = await session.list_tools()
    names = [t.name for t in page.tools]
    while page.nextCursor:
        page = await session.list_tools(cursor=page.nextCursor)
        names += [t.name for t in page.tools]
    return names


async def main(events: Events) -> int:
    plan = V1(events)
    async with (
        transport() as streams,
        ClientSession(streams[0], streams[1], **(plan.callbacks() if o.plan else {})) as session,
    ):
        init = await session.initialize()
        events.say("connected", protocol=init.protocolVersion)
        events.say("tools", names=await all_tools(session))
        events.begin()
        if o.plan:
            plan.session = session
            return await plan.carry_out(json.loads(o.plan))
        patience = timedelta(seconds=o.patience) if o.patience else None
        async with events.failing():
            r = await session.call_tool(
                o.tool, json.loads(o.args), read_timeout_seconds=patience, progress_callback=events.progress
            )
        return events.result(r.isError, r.content)


events = Events()
with events.errors():
    raise SystemExit(asyncio.run(main(events)))
