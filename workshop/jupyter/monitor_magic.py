"""``%monitor``: strips that move while you work. ``%%monitor``: what the machine did during one cell.

``%monitor`` returns at once; its picture is redrawn from the monitor's own thread, also while another cell
runs, until the time is up or ``%monitor stop``. Then it stays as a picture, and nothing runs on.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments
from IPython.display import display

from workshop.jupyter.flags import explain_errors, read_flags
from workshop.measure.monitor import Monitor
from workshop.measure.monitor_record import Sample
from workshop.show.curves import monitor_strips

_DRAWN = 240  # newest samples in the live picture


class LiveStrips:
    """A live picture of a monitor. ``image`` is the widget, ``monitor`` what feeds it."""

    def __init__(self, seconds: float, interval_seconds: float, log: Path | None = None):
        import ipywidgets

        if not seconds > 0:
            raise ValueError(f"--seconds {seconds:g}: more than nothing")
        self.image = ipywidgets.HTML()
        self.words = ipywidgets.HTML("the first sample comes in a moment")
        self.box = ipywidgets.VBox([self.image, self.words])
        self.monitor = Monitor(interval_seconds, keep=_DRAWN, log=log, on_sample=self._draw)
        self._clock = threading.Timer(seconds, self.stop)
        self._clock.daemon = True

    def start(self) -> None:
        """Begin to sample, and to draw."""
        self.monitor.start()
        self._clock.start()

    def stop(self) -> None:
        """End the sampling; the last picture stays."""
        self._clock.cancel()
        self.monitor.stop()
        self.words.value = " ".join([*self.monitor.notes, "The monitor has ended."])

    def _draw(self, _sample: Sample) -> None:
        self.image.value = monitor_strips(self.monitor.samples).svg
        self.words.value = " ".join(self.monitor.notes)


@magics_class
class MonitorMagics(Magics):
    """Registered by ``%load_ext workshop``."""

    shell: Any  # IPython's InteractiveShell
    live: LiveStrips | None = None

    @explain_errors("%monitor")
    @line_magic("monitor")
    @magic_arguments()
    @argument("action", nargs="?", default="start", choices=("start", "stop"), help="start or stop")
    @argument("--seconds", type=float, default=60.0, metavar="S", help="end after so long (default: 60)")
    @argument("--interval", type=float, default=1.0, metavar="S", help="between samples (default: 1)")
    @argument("--log", type=Path, metavar="FILE", help="also write JSON lines to a new file")
    def monitor_line(self, line: str) -> None:
        """Show strips of cores, memory, network, disk and GPUs that move while you work."""
        args = read_flags(self.monitor_line, line)
        if self.live is not None:
            self.live.stop()
            type(self).live = None
        elif args.action == "stop":
            print("no monitor runs; `%monitor` starts one")
        if args.action == "start":
            view = LiveStrips(args.seconds, args.interval, args.log)
            view.start()
            type(self).live = view
            display(view.box)

    @explain_errors("%%monitor")
    @cell_magic("monitor")
    @magic_arguments()
    @argument("--interval", type=float, default=0.25, metavar="S", help="between samples (default: 0.25)")
    @argument("--log", type=Path, metavar="FILE", help="also write JSON lines to a new file")
    @argument("--into", metavar="NAME", help="variable that gets the Monitor, in place of the picture")
    def monitor_cell(self, line: str, cell: str) -> None:
        """Run the cell (a parallel cell too) and show what the machine did meanwhile."""
        args = read_flags(self.monitor_cell, line)
        if args.into is not None and not args.into.isidentifier():
            raise ValueError(f"--into {args.into}: a variable's name, for example --into watched")
        with Monitor(args.interval, log=args.log) as watched:
            done = self.shell.run_cell(cell)
        for note in watched.notes:
            print(note)
        if args.into:
            self.shell.user_ns[args.into] = watched
        else:
            display(monitor_strips(watched.samples))
        if done.error_in_exec is not None:
            done.error_in_exec._render_traceback_ = lambda: ["the cell below %%monitor failed; see above"]
        done.raise_error()
