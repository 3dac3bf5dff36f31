"""`octavo chat`: lines from a terminal or a pipe, answers as they come.

Control-C ends an answer, and the chat where none is under way; Control-D ends the chat. Words go to stdout, all else to
stderr, so that answers can be piped.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from server.terminal.chat_source import ChatSource, ChatSourceError
from server.terminal.conversation import Conversation

HELP = """\
/reset          forget what was said
/system TEXT    what the model is told before everything else; without TEXT, nothing
/stats          what the latest answer cost
/help           this
/exit           leave, like Control-D"""
FAILED = 1


def run(source: ChatSource, *, system: str | None = None, choices: dict[str, float | int] | None = None) -> int:
    """Talk until the input ends; the exit status, 1 when the input came from a pipe and an answer failed."""
    conversation = Conversation(source, system=system, choices=choices)
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401 - edits lines and remembers them
        _tell(f"Talking to {source.model}. /help shows the commands; Control-C ends an answer, Control-D the chat.")
    status = 0
    for line in _lines("> " if is_terminal else ""):
        text = line.strip()
        if text in ("/exit", "/quit"):
            break
        if text.startswith("/"):
            _obey(conversation, text)
        elif text:
            answered = _answer(conversation, text)
            status = status if answered or is_terminal else FAILED
    return status


def _lines(prompt: str) -> Iterator[str]:
    while True:
        try:
            yield input(prompt)
        except EOFError:
            if prompt:
                print()
            return
        except KeyboardInterrupt:
            print()
            return


def _answer(conversation: Conversation, text: str) -> bool:
    words = conversation.ask(text)
    try:
        for word in words:
            print(word, end="", flush=True)
    except KeyboardInterrupt:
        print(end=" [interrupted]")
    except ChatSourceError as error:
        _tell(f"octavo: {error}")
        return False
    finally:
        words.close()  # type: ignore[attr-defined]
    print(flush=True)
    return True


def _obey(conversation: Conversation, text: str) -> None:
    command, _, rest = text.partition(" ")
    if command == "/reset":
        conversation.reset()
    elif command == "/system":
        conversation.system = rest.strip() or None
    elif command == "/stats":
        _tell("no answer yet" if conversation.cost is None else str(conversation.cost))
    elif command == "/help":
        _tell(HELP)
    else:
        _tell(f"no such command: {command}; /help shows what there is")


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
