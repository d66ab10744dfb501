"""What the clients on the Python SDKs have in common."""

import argparse
import asyncio
import contextlib
import json
import time


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    for name in ("url", "era", "tool", "args", "bearer", "timeout"):
        p.add_argument("--" + name)
    o = p.parse_args()
    o.patience = float(o.timeout) / 1000 if o.timeout else None  # seconds; the SDK's own default if None
    o.headers = {"Authorization": "Bearer " + o.bearer} if o.bearer else {}
    return o


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
        self.say("result", isError=bool(is_error), text="\n".join(getattr(c, "text", "") for c in content))
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
