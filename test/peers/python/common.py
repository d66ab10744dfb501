"""What the clients on the Python SDKs have in common."""

import argparse
import contextlib
import json
import time


def options() -> argparse.Namespace:
    p = argparse.ArgumentParser()
    for name in ("url", "era", "tool", "args", "bearer"):
        p.add_argument("--" + name)
    o = p.parse_args()
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
        self.say("result", isError=bool(is_error), text=content[0].text if content else "")
        return 3 if is_error else 0

    @contextlib.contextmanager
    def errors(self):
        try:
            yield
        except Exception as e:
            while isinstance(e, BaseExceptionGroup):
                e = e.exceptions[0]
            self.say("error", msg=str(e))
            raise SystemExit(4) from None
