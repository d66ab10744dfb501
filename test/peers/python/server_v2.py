"""A tool server on version 2 of the Python SDK, which serves both eras.

python server_v2.py --port N
"""

import argparse
import asyncio

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent

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


server.run("streamable-http", host="127.0.0.1", port=o.port)
