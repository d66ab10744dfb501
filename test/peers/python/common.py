"""What the clients and the servers on the Python SDKs have in common."""

import argparse
import asyncio
import contextlib
import json
import time


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    for name in ("url", "era", "tool", "args", "plan", "bearer", "timeout"):
        p.add_argument("--" + name)
    o = p.parse_args()
    o.patience = float(o.timeout) / 1000 if o.timeout else None  # seconds; the SDK's own default if None
    o.headers = {"Authorization": "Bearer " + o.bearer} if o.bearer else {}
    return o


def text_of(content: list) -> str:
    return "\n".join(getattr(c, "text", "") for c in content)


class Events:
    """Prints one JSON line per event, with the seconds since the call began."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self.start = time.monotonic()

    def say(self, ev: str, **x: object) -> None:
        print(json.dumps({"t": round(time.monotonic() - self.start, 4), "ev": ev, **x}), flush=True)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        self.say("progress", progress=progress, total=total, message=message)

    def result(self, is_error: bool, content: list) -> int:
        self.say("result", isError=bool(is_error), text=text_of(content))
        return 3 if is_error else 0

    @contextlib.asynccontextmanager
    async def failing(self):
        """Leaves the SDK time to tell the server that the client has given up."""
        try:
            yield
        except Exception:
            await asyncio.sleep(0.3)
            raise

    @contextlib.contextmanager
    def errors(self):
        try:
            yield
        except Exception as e:
            while isinstance(e, BaseExceptionGroup):
                e = e.exceptions[0]
            self.say("error", msg=str(e))
            raise SystemExit(4) from None


class Plan:
    """Does the steps of a plan one after the other, and says what came of each.

    A class per version of the SDK has what differs: call(step, progress) gives
    (is_error, content), names(what) lists, and subscribed(uri) and changing(what)
    are contexts of whoever listens, with what waits for the first that is heard.
    """

    def __init__(self, events: Events) -> None:
        self.events = events
        self.asked: list[str] = []
        self.ears: dict[str, asyncio.Event] = {}

    def ask(self, message: str) -> None:
        self.asked.append(message)
        self.events.say("asked", message=message)

    def hear(self, what: str) -> None:
        self.ears.setdefault(what, asyncio.Event()).set()

    async def heard(self, what: str) -> None:
        await self.ears.setdefault(what, asyncio.Event()).wait()

    async def carry_out(self, steps: list[dict]) -> int:
        for step in steps:
            self.events.begin()
            self.asked.clear()
            self.ears.clear()
            try:
                did = await getattr(self, "do_" + step["do"])(step)
            except Exception as e:
                while isinstance(e, BaseExceptionGroup):
                    e = e.exceptions[0]
                did = {"error": str(e) or type(e).__name__}
            self.events.say("did", do=step["do"], **did)
        return 0

    async def do_call(self, step: dict, progress=None) -> dict:
        is_error, content = await self.call(step, progress)
        return {"text": text_of(content), "isError": bool(is_error)}

    async def do_progress(self, step: dict) -> dict:
        values = []

        async def progress(value: float, total: float | None, message: str | None) -> None:
            values.append(value)
            await self.events.progress(value, total, message)

        is_error, content = await self.call(step, progress)
        return {"text": text_of(content), "isError": bool(is_error), "progress": values}

    async def do_elicit(self, step: dict) -> dict:
        return {**await self.do_call(step), "asked": list(self.asked)}

    do_sample = do_elicit

    async def do_subscribe(self, step: dict) -> dict:
        async with self.subscribed(step["uri"]) as update:
            if "tool" in step:
                await self.call(step)
            return {"updated": step["uri"]} if await self.came(update, step) else {}

    async def do_cancel(self, step: dict) -> dict:
        """Gives up after a time, or as soon as there is progress."""
        after = step.get("after_ms")
        async with asyncio.timeout(after / 1000 if after else None) as limit:

            async def progress(value: float, total: float | None, message: str | None) -> None:
                await self.events.progress(value, total, message)
                if not after:
                    limit.reschedule(0)

            return await self.do_call(step, progress)

    async def do_change(self, step: dict) -> dict:
        async with self.changing(step["what"]) as change:
            await self.names(step["what"])
            await self.call(step)
            changed = await self.came(change, step)
            return {"changed": changed, "names": await self.names(step["what"])}

    async def came(self, waiting, step: dict) -> bool:
        try:
            await asyncio.wait_for(waiting, step.get("wait_ms", 5000) / 1000)
        except TimeoutError:
            return False
        return True


class Waits:
    """What a server knows of the calls that wait to be cancelled."""

    def __init__(self) -> None:
        self.states: dict[str, str] = {}

    async def wait(self, key: str, ctx) -> str:
        self.states[key] = "waiting"
        try:
            await ctx.report_progress(1, 2, "waiting")
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            self.states[key] = "cancelled"
            raise
        self.states[key] = "ended"
        return self.states[key]

    def said(self, key: str) -> str:
        return self.states.get(key, "none")
