"""Measured launches as a trace of events: JSON for Perfetto and Chrome's about:tracing.

Reference: Google's "Trace Event Format"; times are microseconds.
"""

from __future__ import annotations

import json
from typing import Any

from rawkern.profiling.text import dims


def page(data: dict[str, Any]) -> str:
    """The timed launches of a report: a process for each GPU, a thread for each stream."""
    launches = [launch for launch in data["launches"] if "milliseconds" in launch]
    if not launches:
        raise ValueError("no launch was timed, so there is no trace; only launches on GPUs are timed")
    devices = list(dict.fromkeys(launch["device"] for launch in launches))
    streams = list(dict.fromkeys((launch["device"], launch["timing"]["stream"]) for launch in launches))
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": k, "args": {"name": device}} for k, device in enumerate(devices)
    ]
    for k, (device, stream) in enumerate(streams):
        name = f"stream {stream:#x}" if stream else "default stream"
        events.append(
            {"name": "thread_name", "ph": "M", "pid": devices.index(device), "tid": k, "args": {"name": name}}
        )
    for launch in launches:
        device, timing = launch["device"], launch["timing"]
        events.append(
            {
                "name": launch["kernel"], "cat": "kernel", "ph": "X", "pid": devices.index(device),
                "tid": streams.index((device, timing["stream"])), "ts": timing["start"] * 1e3,
                "dur": launch["milliseconds"] * 1e3, "args": _about(launch),
            }
        )  # fmt: skip
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}, indent=1)


def _about(launch: dict[str, Any]) -> dict[str, Any]:
    """Details that appear when a launch is clicked."""
    timing, counters = launch["timing"], launch["counters"]
    found = {"grid": dims(launch["grid"]), "block": dims(launch["block"]), "shared memory": launch["shared_mem"]}
    found |= {"first launch": timing["first"], "host was late": timing["late"]}
    if "share_of_copy_rate" in timing:
        found["share of the copy rate"] = timing["share_of_copy_rate"]
    found |= {f"lower bound by {name} (us)": seconds * 1e6 for name, seconds in launch.get("bounds", {}).items()}
    return found | {name: counters[name] for name in counters if counters[name]}
