"""``python -m scheduler.simulation``, which is ``octavo simulate``: how many pages, how long a queue.

Statuses: 0, 1 when no number of pages meets the targets of --find-pages, 2 for wrong arguments or a wrong trace (one
sentence on stderr says which), 141 when nobody reads the table any more.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from block_manager.sizing import Capacity
from scheduler.simulation import flags
from scheduler.simulation.page_search import PageSearch
from scheduler.simulation.plot import PlotError, check_plot, write_plot
from scheduler.simulation.report import Report, to_json, to_table
from scheduler.simulation.settings import Settings
from scheduler.simulation.simulator import Simulator
from scheduler.simulation.timeline import Timeline
from scheduler.simulation.trace import TraceError, TraceRequest, read_trace

PROGRESS_SECONDS = 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    parsed = flags.parse(arguments)
    try:
        if parsed.plot is not None:
            check_plot(parsed.plot)
        return _Command(parsed, flags.settings_of(parsed)).run()
    except (TraceError, PlotError) as error:
        print(f"{flags.PROGRAM}: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print(f"{flags.PROGRAM}: so many pages, or so long requests, do not fit into memory", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who reads the table has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        return 130


@dataclass
class _Command:
    parsed: argparse.Namespace
    settings: Settings
    timelines: dict[int, Timeline] = field(default_factory=dict)  # by pages

    def run(self) -> int:
        sentence, status = "", 0
        if self.parsed.find_pages:
            reports, sentence, status = self._search()
        else:
            reports = [self._simulate(num_pages) for num_pages in dict.fromkeys(self.parsed.pages)]
        print(to_json(reports) if self.parsed.json else to_table(reports), flush=True)
        if sentence:
            print(sentence, file=sys.stderr if self.parsed.json else sys.stdout)
        if self.parsed.plot is not None:
            write_plot(self.parsed.plot, dict(sorted(self.timelines.items())))
        return status

    def _simulate(self, num_pages: int) -> Report:
        gc.collect()  # what the run before has left
        progress = _Progress(num_pages) if self.parsed.progress else None
        with self._trace() as trace:
            simulator = Simulator(self.settings, num_pages, trace, progress)
            report = simulator.run()
        self.timelines[num_pages] = simulator.timeline
        return report

    def _search(self) -> tuple[list[Report], str, int]:
        """All that was tried, what came of it in a sentence, and the status."""
        with self._trace() as trace:
            longest = max((one.prompt_tokens + one.max_tokens - 1 for one in trace), default=1)
        limits = self.settings.limits
        sizes = Capacity(self.settings.groups, self.settings.block_size, 1, limits.max_num_batched_tokens)
        # children are not simulated, and so no block has to be copied: this is room for as many as may run
        most = limits.max_num_seqs * sizes.peak_pages(longest, limits.max_num_batched_tokens)
        search = PageSearch(self._simulate, flags.target_of(self.parsed))
        found = search.smallest(sizes.peak_pages(longest, 1), most)
        if found is None:
            sentence = (
                f"No number of pages meets the targets: with {search.tried[-1].num_pages:,}, room for "
                f"{limits.max_num_seqs} of the longest requests, something else is short."
            )
            return search.tried, sentence, 1
        return search.tried, f"{found:,} pages are enough.", 0

    @contextmanager
    def _trace(self) -> Iterator[Iterator[TraceRequest]]:
        if self.parsed.trace is None:
            yield iter(flags.workload_of(self.parsed))
            return
        try:
            with open(self.parsed.trace, encoding="utf-8") as lines:
                yield read_trace(lines)
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"--trace {self.parsed.trace}: {error}") from None
        except TraceError as error:
            raise TraceError(f"--trace {self.parsed.trace}, {error}") from None


class _Progress:
    """Says on stderr, every few seconds, how far one run is."""

    def __init__(self, num_pages: int) -> None:
        self._num_pages = num_pages
        self._began = self._latest = time.monotonic()

    def __call__(self, simulated: float, num_ended: int) -> None:
        now = time.monotonic()
        if now - self._latest < PROGRESS_SECONDS:
            return
        self._latest = now
        rate = num_ended / (now - self._began)
        print(
            f"{self._num_pages:,} pages: {num_ended:,} requests in {now - self._began:.0f} s ({rate:,.0f}/s), "
            f"simulated second {simulated:,.0f}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    gc.disable()  # a run leaves no cycles but itself, and looking for them costs a tenth of its time
    sys.exit(main())
