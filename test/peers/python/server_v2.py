"""A tool server on version 2 of the Python SDK, which serves both eras.

python server_v2.py [--port N]

Without a port it serves its standard input and output.
"""

import argparse
import asyncio
import functools
from typing import Annotated

from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context, Elicit, ElicitationResult, MCPServer, Resolve, Sample
from mcp.server.mcpserver.prompts import Prompt
from mcp.types import (
    CallToolResult,
    CreateMessageResult,
    EmptyResult,
    SamplingMessage,
    SubscribeRequestParams,
    TextContent,
    UnsubscribeRequestParams,
)
from pydantic import BaseModel

from common import Waits

p = argparse.ArgumentParser()
p.add_argument("--port", type=int)
p.add_argument("--era")
o = p.parse_args()

server = MCPServer("python-v2", log_level="WARNING")


@server.tool()
def echo(text: str) -> str:
    """Says it back."""
    return text


@server.tool()
def fail(text: str) -> CallToolResult:
    """Fails."""
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)


@server.tool()
async def slow(duration_ms: float, steps: int, ctx: Context) -> str:
    """Takes its time."""
    for i in range(1, steps + 1):
        await ctx.report_progress(i, steps, f"step {i}")
        await asyncio.sleep(duration_ms / 1000 / steps)
    return f"slow finished {steps} steps"


class Name(BaseModel):
    name: str


async def ask_name(text: str) -> Elicit[Name]:
    return Elicit(text, Name)


async def ask_model(text: str) -> Sample:
    return Sample([SamplingMessage(role="user", content=TextContent(type="text", text=text))], max_tokens=10)


@server.tool()
async def elicit(text: str, who: Annotated[ElicitationResult[Name], Resolve(ask_name)]) -> str:
    """Asks for a name."""
    return f"{who.action} {who.data.name if who.action == 'accept' else ''}"


@server.tool()
async def sample(text: str, said: Annotated[CreateMessageResult, Resolve(ask_model)]) -> str:
    """Asks a model."""
    return f"sampled {said.content.text}"


waits = Waits()


@server.tool()
async def wait(text: str, ctx: Context) -> str:
    """Waits to be cancelled."""
    return await waits.wait(text, ctx)


@server.tool()
def waited(text: str) -> str:
    """Says what became of a wait."""
    return waits.said(text)


@server.resource("note:///1")
def first() -> str:
    return "this is note:///1"


@server.prompt()
def greet() -> str:
    return "hello from greet"


# Of sessions, the SDK's high-level server keeps no account: who subscribed, and who has read the prompts.
low = server._lowlevel_server
subscribers: dict[str, dict] = {}
readers: dict = {}


async def subscribe(ctx, params):
    subscribers.setdefault(params.uri, {})[ctx.session._connection] = ctx.session
    return EmptyResult()


async def unsubscribe(ctx, params):
    subscribers.get(params.uri, {}).pop(ctx.session._connection, None)
    return EmptyResult()


async def note_reader(ctx, call_next):
    if ctx.method == "prompts/list" and ctx.protocol_version < "2026":
        readers[ctx.session._connection] = ctx.session
    return await call_next(ctx)


low.add_request_handler("resources/subscribe", SubscribeRequestParams, subscribe)
low.add_request_handler("resources/unsubscribe", UnsubscribeRequestParams, unsubscribe)
low.middleware.append(note_reader)
low.create_initialization_options = functools.partial(
    low.create_initialization_options, NotificationOptions(prompts_changed=True)
)


@server.tool()
async def touch(text: str, ctx: Context) -> str:
    """Says that a resource changed."""
    await ctx.notify_resource_updated(text)
    for session in list(subscribers.get(text, {}).values()):
        await session.send_resource_updated(text)
    return "touched"


@server.tool()
async def grow(text: str, ctx: Context) -> str:
    """Adds a prompt."""
    server.add_prompt(Prompt.from_function(lambda: f"hello from {text}", name=text))
    await ctx.notify_prompts_changed()
    for session in list(readers.values()):
        await session.send_prompt_list_changed()
    return "grown"


if o.port:
    server.run("streamable-http", host="127.0.0.1", port=o.port)
else:
    server.run("stdio")
