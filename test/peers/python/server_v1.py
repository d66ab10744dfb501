"""A tool server on version 1 of the Python SDK (FastMCP), which sends progress on the standalone stream.

python server_v1.py [--port N]

Without a port it serves its standard input and output.
"""

import argparse
import asyncio
import functools

import anyio
import mcp.types as types
from mcp.server import NotificationOptions
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.prompts import Prompt
from pydantic import AnyUrl, BaseModel

from common import Waits

p = argparse.ArgumentParser()
p.add_argument("--port", type=int)
p.add_argument("--era")
o = p.parse_args()

server = FastMCP("python-v1", host="127.0.0.1", port=o.port or 0, log_level="WARNING")


@server.tool()
def echo(text: str) -> str:
    """Says it back."""
    return text


@server.tool()
def fail(text: str) -> types.CallToolResult:
    """Fails."""
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], isError=True)


@server.tool()
async def slow(duration_ms: float, steps: int, ctx: Context) -> str:
    """Takes its time."""
    for i in range(1, steps + 1):
        await ctx.report_progress(i, steps, f"step {i}")
        await asyncio.sleep(duration_ms / 1000 / steps)
    return f"slow finished {steps} steps"


class Name(BaseModel):
    name: str


@server.tool()
async def elicit(text: str, ctx: Context) -> str:
    """Asks for a name."""
    r = await ctx.elicit(text, Name)
    return f"{r.action} {r.data.name if r.action == 'accept' else ''}"


@server.tool()
async def sample(text: str, ctx: Context) -> str:
    """Asks a model."""
    question = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=text))
    r = await ctx.session.create_message([question], max_tokens=10, related_request_id=ctx.request_id)
    return f"sampled {r.content.text}"


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


# FastMCP keeps no account of sessions: who subscribed, and who has read the prompts.
low = server._mcp_server
subscribers: dict[str, set] = {}
readers: set = set()


@low.subscribe_resource()
async def subscribe(uri: AnyUrl) -> None:
    subscribers.setdefault(str(uri), set()).add(low.request_context.session)


@low.unsubscribe_resource()
async def unsubscribe(uri: AnyUrl) -> None:
    subscribers.get(str(uri), set()).discard(low.request_context.session)


@low.list_prompts()
async def list_prompts() -> list[types.Prompt]:
    readers.add(low.request_context.session)
    return await server.list_prompts()


low.create_initialization_options = functools.partial(
    low.create_initialization_options, NotificationOptions(prompts_changed=True)
)


async def tell(sessions: set, what) -> None:
    for session in list(sessions):
        try:
            await what(session)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            sessions.discard(session)  # it has ended


@server.tool()
async def touch(text: str) -> str:
    """Says that a resource changed."""
    await tell(subscribers.get(text, set()), lambda s: s.send_resource_updated(AnyUrl(text)))
    return "touched"


@server.tool()
async def grow(text: str) -> str:
    """Adds a prompt."""
    server.add_prompt(Prompt.from_function(lambda: f"hello from {text}", name=text))
    readers.add(low.request_context.session)
    await tell(readers, lambda s: s.send_prompt_list_changed())
    return "grown"


server.run("streamable-http" if o.port else "stdio")
