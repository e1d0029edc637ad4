"""Where a run shows itself: a live table on a terminal, a line now and then elsewhere.

Progress goes to stdout, or to stderr under --json, where stdout belongs to the result. Deaths and
the log go to stderr. While a live table stands on the terminal everything else is printed above
it, or the two would overwrite each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TextIO, cast

from dsec.cli import render
from dsec.cli.logs import make_logger
from dsec.cli.stream import SafeStream

if TYPE_CHECKING:
    from rich.live import Live

    from dsec.engine import Death, Failover, Snapshot

LIVE_INTERVAL_S = 0.5
PLAIN_INTERVAL_S = 5.0


class TerminalView:
    """The view of `dsec-kernel run`. Call `close` before anything else is written."""

    def __init__(self, out: SafeStream, err: SafeStream, *, verbose: bool) -> None:
        self._out, self._err = out, err
        self._verbose = verbose
        self._live: Live | None = None
        self._last_line = ""
        if out.isatty():
            self._live = self._make_live(out)
        self.interval_s = LIVE_INTERVAL_S if self._live else PLAIN_INTERVAL_S
        # With the table on this very terminal, stderr has to be printed above it.
        above = self._live is not None and err.isatty()
        log_stream = cast("SafeStream", _AboveLive(self._live)) if above and self._live else err
        self._errors = log_stream
        self._logger = make_logger(log_stream, colors=err.isatty(), verbose=verbose)

    @staticmethod
    def _make_live(out: SafeStream) -> Live:
        from rich.console import Console
        from rich.live import Live

        console = Console(file=cast("TextIO", out))
        # The loop of the supervisor draws; a thread that draws by itself has no place there.
        return Live(
            console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )

    def begin(self, run_dir: str, agents: int, seed: int) -> None:
        """Say where the run is recorded."""
        self._logger.info("run started", run_dir=run_dir, agents=agents, seed=seed)
        if self._live is not None:
            self._live.start()

    def snapshot(self, snapshot: Snapshot) -> None:
        """Draw the table, or write a line if there is news."""
        if self._live is not None:
            table = render.progress_table(snapshot, self._live.console.width)
            self._live.update(table, refresh=True)
            return
        line = render.progress_line(snapshot)
        if line != self._last_line:
            self._last_line = line
            self._out.line(line)

    def death(self, death: Death, advice: str, log: str) -> None:
        """Print the whole story."""
        for line in render.death_lines(death, advice, log):
            self._errors.write(line + "\n")
        self._errors.flush()

    def failover(self, failover: Failover) -> None:
        """A line for each; the whole is in summary.json."""
        self._errors.write(render.failover_line(failover) + "\n")
        self._errors.flush()

    def log(self, level: str, event: str, **fields: Any) -> None:
        """Write a line to the log."""
        getattr(self._logger, level)(event, **fields)

    def close(self) -> None:
        """Take the table down; its last state stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class _AboveLive:
    """A stream that prints whole lines above a live table."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._rest = ""

    def write(self, text: str) -> int:
        from rich.text import Text

        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._live.console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def flush(self) -> None:
        """Nothing is held back but the begun line."""
