"""One gzip stream, read forwards, with an end to what it may expand to."""

from __future__ import annotations

import zlib

from servekit.system.archives.names import CHUNK, BrokenError, is_bomb, pread


class GzipStream:
    """The decompressed bytes of an open file of ``length`` bytes that holds exactly one gzip stream.

    TorchServe stops after the first stream of a file, Python goes on to the next: more than one is refused.
    """

    def __init__(self, descriptor: int, length: int) -> None:
        self._descriptor, self._length = descriptor, length
        self._machine = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._position = self._total = 0
        self._waiting = b""
        self._ready = memoryview(b"")  # cut without being copied: headers are small and blocks are large

    def read(self, count: int) -> bytes:
        """Exactly ``count`` bytes; BrokenError when the stream ends before, is damaged, or is a bomb."""
        blocks = []
        while count:
            block = self._ready or memoryview(self.read_some())
            if not block:
                raise BrokenError("it is truncated: its tar ends without an end marker.")
            blocks.append(block[:count])
            self._ready = block[count:]
            count -= len(blocks[-1])
        return b"".join(blocks)

    def read_some(self) -> bytes:
        """What comes next, a block of any size; b"" at the end of the stream, which must be the file's."""
        if self._ready:
            block, self._ready = bytes(self._ready), memoryview(b"")
            return block
        while not self._machine.eof:
            block = self._inflate()
            self._total += len(block)
            if is_bomb(self._total, self._length):
                raise BrokenError(f"it expands to {self._total} bytes or more out of {self._length}: it is a bomb.")
            if block:
                return block
        if self._machine.unused_data or self._position < self._length:
            raise BrokenError("bytes follow its compressed stream.")
        return b""

    def _inflate(self) -> bytes:
        if not self._waiting:
            self._waiting = pread(self._descriptor, CHUNK // 4, self._position)
            self._position += len(self._waiting)
        ended = not self._waiting
        try:
            block = self._machine.decompress(self._waiting, CHUNK)
        except zlib.error as error:
            raise BrokenError(f"it is damaged: {error}.") from error
        self._waiting = self._machine.unconsumed_tail
        if ended and not block and not self._machine.eof:
            raise BrokenError("it is truncated: its compressed data is cut off.")
        return block
