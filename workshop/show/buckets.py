"""DDP's overlap: when each gradient was ready, when each bucket left, when it arrived."""

from __future__ import annotations

from collections.abc import Sequence

from workshop.facts.units import format_seconds
from workshop.show.style import Picture, new_figure, rank_colour

Event = tuple[str, int, str, float]
"""What ("ready", "sent", "arrived"), bucket, parameter, seconds."""


def bucket_timeline(events: Sequence[Event], end_of_backward: float) -> Picture:
    """A picture of one backward pass: gradients as ticks above, each bucket's way over the wire as a bar.

    events: what `workshop.parallel.ddp.BucketedDDP(watch=...)` was told, with the seconds since backward
    began. end_of_backward: seconds until `backward()` returned. ValueError where no bucket was sent.
    """
    times: dict[str, dict[int, float]] = {"sent": {}, "arrived": {}}
    for what, bucket, _, seconds in events:
        if what in times:
            times[what][bucket] = seconds
    sent, arrived = times["sent"], times["arrived"]
    if not sent:
        raise ValueError("no bucket was sent: give the events of a backward pass outside no_sync()")
    ready = [(bucket, seconds) for what, bucket, _, seconds in events if what == "ready"]
    last_gradient = max(seconds for _, seconds in ready)
    figure, axis = new_figure(7.0, 1.3 + 0.3 * len(sent))
    for bucket, seconds in ready:
        axis.plot([seconds * 1e3] * 2, [-0.35, 0.35], color=rank_colour(bucket), linewidth=2)
    for bucket in sorted(sent):
        start, end = sent[bucket] * 1e3, arrived.get(bucket, end_of_backward) * 1e3
        axis.barh(bucket + 1, end - start, 0.7, left=start, color=rank_colour(bucket))
    axis.axvline(last_gradient * 1e3, color="#666666", linewidth=0.8, linestyle=":")
    axis.text(last_gradient * 1e3, -0.75, "last gradient ", ha="right", fontsize=8, color="#666666")
    axis.set_yticks(
        range(len(sent) + 1), ["gradient ready", *(f"bucket {b} on the wire" for b in sorted(sent))]
    )
    axis.tick_params(labelsize=8, length=2)
    axis.set_ylim(len(sent) + 0.6, -1.1)
    axis.set_xlim(0, end_of_backward * 1e3)
    axis.set_xlabel("milliseconds since backward began", fontsize=8)
    early = sum(seconds < last_gradient for seconds in sent.values())
    exposed = format_seconds(max(0.0, end_of_backward - last_gradient))
    words = f"{early} of {len(sent)} buckets left before the last gradient was there; {exposed} after it"
    axis.set_title(words, fontsize=9, loc="left")
    return Picture(figure, words)
