"""A model archive as a zip (``NAME.mar``), stored or deflated."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from servekit.system import file_digest
from servekit.system.archives.names import CHUNK, BrokenError, Listing, Names, identity, is_bomb, shown
from servekit.system.archives.zip_directory import DEFLATED, Entry, member_problems, read_directory, read_exactly


class ZipReader:
    """Reads an open file; see archive_names.Reader."""

    form = "mar"

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor
        status = os.fstat(descriptor)
        self._length = status.st_size
        self.identity = identity(status)
        self._entries: list[Entry] = []

    def listing(self) -> Listing:
        names = Names()
        try:
            self._entries, problems = read_directory(self._descriptor, self._length)
            for entry in self._entries:
                problems += [f"the member {shown(entry.name)} {what}." for what in member_problems(entry)]
                names.add(entry.name, entry.size, folder=entry.folder)
        except BrokenError as error:
            listing = names.finish()
            listing.problems.append(str(error))
            listing.complete = False
            return listing
        listing = names.finish()
        listing.problems += problems
        total = sum(listing.sizes.values())
        if is_bomb(total, self._length):
            listing.problems.append(f"it expands to {total} bytes out of {self._length}: more than a model would.")
        return listing

    def stream(self, only: frozenset[str] | None = None) -> Iterator[tuple[str, Iterator[bytes]]]:
        entries = self._entries or read_directory(self._descriptor, self._length)[0]
        for entry in entries:
            name = entry.name.decode(errors="replace")
            if not entry.folder and (only is None or name in only):
                yield name, self._blocks(entry)

    def sha256(self, memory: Path | None) -> str:
        return file_digest.sha256(self._path, memory)

    def _blocks(self, entry: Entry) -> Iterator[bytes]:
        crc = size = 0
        for block in self._inflated(entry) if entry.method == DEFLATED else self._packed(entry):
            size += len(block)
            if size > entry.size:
                raise BrokenError(f"the member {shown(entry.name)} is longer than the directory says.")
            crc = zlib.crc32(block, crc)
            yield block
        if (size, crc) != (entry.size, entry.crc):
            raise BrokenError(f"the member {shown(entry.name)} is damaged: its checksum differs.")

    def _packed(self, entry: Entry) -> Iterator[bytes]:
        for position in range(0, entry.packed, CHUNK):
            yield read_exactly(self._descriptor, min(CHUNK, entry.packed - position), entry.start + position)

    def _inflated(self, entry: Entry) -> Iterator[bytes]:
        machine = zlib.decompressobj(-zlib.MAX_WBITS)
        packed = self._packed(entry)
        waiting = b""
        while not machine.eof:
            waiting = waiting or next(packed, b"")
            try:
                block = machine.decompress(waiting, CHUNK)
            except zlib.error as error:
                raise BrokenError(f"the member {shown(entry.name)} is damaged: {error}.") from error
            if not (waiting or block or machine.eof):
                raise BrokenError(f"the member {shown(entry.name)} is damaged: its compressed data is cut off.")
            waiting = machine.unconsumed_tail
            yield block
        if machine.unused_data or next(packed, b""):
            raise BrokenError(f"the member {shown(entry.name)} is damaged: bytes follow its compressed data.")
