#!/usr/bin/env python3
"""Writes corpus/token: settings of six bytes (see token_fuzzer.cpp), then the files' bytes."""
import pathlib
import struct

FORMATS = {"automatic": 0, "bytes": 1, "uint16": 2, "uint32": 3}
LARGEST = 2**31 - 1
UINT16, UINT32 = 20240520, 20240801
folder = pathlib.Path(__file__).parent / "corpus" / "token"


def seed(name, content, format="automatic", length=4, vocabulary=256, cut=0):
    largest = vocabulary == LARGEST
    first = FORMATS[format] + 252 * largest
    settings = struct.pack("<BHHB", first, length - 1, 0 if largest else vocabulary - 1, cut)
    (folder / name).write_bytes(settings + content)


def header(magic, count, version=1):
    return struct.pack("<iii", magic, version, count).ljust(1024, b"\0")


def row(kind, count):
    return struct.pack(f"<{count}{kind}", *(i % 251 for i in range(count)))


folder.mkdir(parents=True, exist_ok=True)
seed("text", b"To be, or not to be, that is the question")
seed("text-one-token-sequences", b"Sing, O goddess", length=1)
seed("text-two-files", b"first file, second file", cut=128)
seed("text-empty-first-file", b"all in the second", cut=1)
seed("text-empty-second-file", b"all in the first", cut=255)
seed("text-too-short", b"four", length=4)
seed("text-vocabulary-too-small", b"bytes need 256", vocabulary=255)
seed("bytes-with-magic", header(UINT16, 0)[:16], format="bytes")
seed("uint16-raw", row("H", 40), format="uint16")
seed("uint16-raw-two-files", row("H", 127), format="uint16", cut=128)
seed("uint16-odd", row("H", 9) + b"x", format="uint16")
seed("uint16-outside", row("H", 9) + b"\xff\xff", format="uint16")
seed("uint16-just-inside", row("H", 40), format="uint16", vocabulary=40)
seed("uint16-just-outside", row("H", 40), format="uint16", vocabulary=39)
seed("uint32-just-outside", struct.pack("<8I", *[LARGEST] * 8), format="uint32", vocabulary=LARGEST)
seed("uint32-raw", row("I", 40), format="uint32", vocabulary=LARGEST)
seed("uint32-rare", struct.pack("<8I", *(LARGEST - 1 - i for i in range(8))), format="uint32", vocabulary=LARGEST)
seed("uint16-header", header(UINT16, 33) + row("H", 33))
seed("uint32-header", header(UINT32, 33) + row("I", 33))
seed("uint16-header-two-files", header(UINT16, 512) + row("H", 512) + header(UINT16, 512) + row("H", 512), cut=128)
seed("header-then-text", header(UINT16, 20) + row("H", 20) + b"." * 1064, cut=128)
seed("header-cut-off", header(UINT32, 33)[:100])
seed("header-count-too-large", header(UINT16, -1) + row("H", 33))
seed("header-version", header(UINT16, 33, version=2) + row("H", 33))
seed("header-contradicted", header(UINT16, 33) + row("H", 33), format="uint32")
