"""What a choice says about its end, in a plain answer and in the last chunk of a streamed one."""

from __future__ import annotations

from typing import Protocol

import msgspec

from engine.messages import Ledger


class Ending(Protocol):
    """The last delta of a choice, or what is known of its end."""

    @property
    def finish_reason(self) -> str | None: ...
    @property
    def stop_reason(self) -> str | int | None: ...
    @property
    def ledger(self) -> Ledger | None: ...


def ending(last: Ending, *, include_ledger: bool) -> dict[str, object]:
    """The fields of a finished choice that no text is in; ``ledger`` is null where the engine gave none."""
    fields: dict[str, object] = {"finish_reason": last.finish_reason, "stop_reason": last.stop_reason}
    if include_ledger:
        fields["ledger"] = None if last.ledger is None else msgspec.to_builtins(last.ledger)
    return fields
