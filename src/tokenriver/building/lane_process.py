"""A process that encodes blocks for a build: a thread for each of its sockets, until these are closed.

It lives as long as the build that started it, however that ends: the end of a socket is the end of its thread.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from tokenriver.building.assemble import BlockEncoder, encode_block
from tokenriver.building.lane_messages import LaneSetup, receive, send, unpack_block
from tokenriver.errors import ResumeError
from tokenriver.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from tokenriver.building.lane_messages import EncoderWords
    from tokenriver.corpus.documents import Position
    from tokenriver.tokenizers.base import Backend, Tokenizer

__all__ = ["serve"]


def serve(handles: list[int]) -> None:
    """Encode what comes by the sockets with these file descriptors; the first brings the LaneSetup."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the build says when it is over
    lanes = [socket.socket(fileno=handle) for handle in handles]
    try:
        setup, _ = receive(lanes[0])
        try:
            encoders = _encoders(setup)
        except Exception as error:
            send(lanes[0], f"{type(error).__name__}: {error}")
            return
        send(lanes[0], None)
        threads = [threading.Thread(target=_serve, args=(lane, setup, encoders), daemon=True) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except (EOFError, OSError):  # the build is over
        return


def _encoders(setup: LaneSetup) -> list[tuple[Position, BlockEncoder]]:
    return [
        (
            words.position,
            BlockEncoder(
                _tokenizer(words),
                setup.sources,
                dtype=words.dtype,
                separator=words.separator,
                hash_fraction=words.hash_fraction,
                verify_sample=words.verify_sample,
            ),
        )
        for words in setup.encoders
    ]


def _tokenizer(words: EncoderWords) -> Tokenizer:
    backend: Backend = "reference" if words.backend == "reference" else "fast"
    tokenizer = load_tokenizer(words.tokenizer, backend=backend, separator=words.separator_option)
    if tokenizer.sha256 != words.tokenizer_sha256:
        raise ResumeError(f"{words.tokenizer}: the tokenizer changed while the build began; build again")
    return tokenizer


def _serve(lane: socket.socket, setup: LaneSetup, encoders: list[tuple[Position, BlockEncoder]]) -> None:
    try:
        while True:
            message, beside = receive(lane)
            raw = [unpack_block(message, beside, setup.sources)]
            del message, beside
            try:
                answer: Any = encode_block(encoders, setup.reading, raw.pop())
            except BaseException as error:  # raised again by the build
                answer = _portable(error)
            send(lane, answer)
            del answer
    except (EOFError, OSError):  # the build is over
        return
    finally:
        lane.close()


def _portable(error: BaseException) -> BaseException:
    """The error, or one that says the same where it cannot go to another process."""
    try:
        same = pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error if type(same) is type(error) and str(same) == str(error) else RuntimeError(f"{error!r}")


if __name__ == "__main__":
    serve([int(word) for word in sys.argv[1:]])
    sys.stderr.flush()
    os._exit(0)  # a thread may still be in an encoder
