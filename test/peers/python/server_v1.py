"""A tool server on version 1 of the Python SDK (FastMCP), which sends progress on the standalone stream.

python server_v1.py --port N
"""

import argparse
import asyncio

import mcp.types as types
from mcp.server.fastmcp import Context, FastMCP

p = argparse.ArgumentParser()
p.add_argument("--port", type=int)
p.add_argument("--era")
o = p.parse_args()

server = FastMCP("python-v1", host="127.0.0.1", port=o.port, log_level="WARNING")


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


server.run("streamable-http")
