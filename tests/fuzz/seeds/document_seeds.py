"""Seeds of the targets that read training text: JSON lines, separated text, gzip, zstd, parquet."""

import gzip
import pathlib
import struct

from packages import require

zstandard = require("zstandard")

PARQUET = pathlib.Path(__file__).resolve().parents[2] / "io" / "data" / "parquet"
TEXT = b"Once upon a time there was a file. " * 8 + b"\n"


def json_lines_seeds():
    return {
        "valid-lines": '{"text":"a"}\n{"id":1,"text":"b","meta":{"text":[1,2,{"text":null}]}}\n',
        "valid-crlf-blank": '\ufeff{"text":"a"}\r\n\r\n \t\n{"text":""}',
        "valid-escapes": '{"te\\u0078t":"\\u00e9\\n\\ud83d\\ude00\\u0000\\/"}\n{"text":"\u00e9\U0001f600"}\n',
        "valid-numbers": '{"n":[1,-0,1.5e-3,123456789012345678901234567890],"text":"x"}\n',
        "valid-deep": '{"d":' + "[" * 1100 + "]" * 1100 + ',"text":"x"}\n',
        "refused-syntax": '{"text":"a"}\n{"text":}\n{"text":"b"}\n{"text":"c",}\nnull\n[]\n"text"\n',
        "refused-field": '{"other":"a"}\n{"text":1}\n{"text":null}\n{"text":"a","text":"b"}\n{"text":["a"]}\n',
        "refused-utf8": b'{"text":"\xff"}\n{"text":"\xed\xa0\x80"}\n{"text":"\\ud800"}\n{"text":"ok"}\n{"\xc0":1}',
        "refused-control": b'{"text":"a\tb"}\n{"text":"a\0b"}\n\0\n{"text":"a"}\0\n',
        "refused-long": '{"text":"' + "x" * 2100 + '"}\n{"text":"next"}\n',
        "refused-blank": "\n \r\n\t\n",
        "refused-gzip": b"\x1f\x8b\x08",
        "refused-utf16": '{"text":"a"}\n'.encode("utf-16"),
    }


def text_seeds():
    return {
        "valid-one": "a document\nof two lines\n",
        "valid-separated": "one\n--\ntwo\n\nmore\n--\n--\n \n--\nthree -- and\n -- \nmore",
        "valid-crlf": "\ufeffone\r\nline\r\n--\r\ntwo\r\n\r\n--\r\n",
        "valid-unicode": "\u00e9\u4e16\U0001f600\n--\n\x7f\u0080\ud7ff\ue000\uffff\U0010ffff\0\n",
        "refused-utf8": b"one\n--\nb\xc3(\n--\ntwo\n--\n\xf4\x90\x80\x80\n--\n\xe2\x82",
        "refused-long": "x" * 513 + "\n--\n" + "y\n" * 256 + "\n--\nnext",
        "refused-blank": "\n--\n\n--\n",
        "refused-zip": b"PK\x03\x04",
    }


def gzip_member(content, level=6):
    return gzip.compress(content, level, mtime=0)


def with_name(content):
    """A member whose header has a name, a comment, an extra field and its own checksum left out."""
    plain = gzip_member(content)
    return plain[:3] + b"\x1c" + plain[4:10] + b"\x03\0abc" + b"name\0" + b"comment\0" + plain[10:]


def gzip_seeds():
    good = gzip_member(TEXT)
    return {
        "valid-one": good,
        "valid-stored": gzip_member(TEXT, 0),
        "valid-members": gzip_member(b"one ") + gzip_member(b"") + gzip_member(b"two"),
        "valid-padding": good + b"\0" * 100,
        "valid-name": with_name(TEXT),
        "valid-many": gzip_member(bytes(300000)),
        "valid-empty": b"",
        "refused-cut": good[:-3],
        "refused-header": good[:5],
        "refused-crc": good[:-8] + bytes([good[-8] ^ 1]) + good[-7:],
        "refused-length": good[:-1] + b"\1",
        "refused-garbage": good + b"garbage",
        "refused-plain": TEXT,
    }


def zstd_frame(content, **options):
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(content)


def zstd_header(window):
    """A frame that asks for a window of 2 ** (10 + window) bytes and holds one empty block."""
    return b"\x28\xb5\x2f\xfd\0" + bytes([window << 3]) + b"\x01\0\0"


def zstd_seeds():
    good = zstd_frame(TEXT)
    skippable = struct.pack("<II", 0x184D2A53, 5) + b"index"
    return {
        "valid-one": good,
        "valid-level-19": zstd_frame(TEXT, level=19),
        "valid-frames": zstd_frame(b"one ") + skippable + zstd_frame(b"") + zstd_frame(b"two"),
        "valid-skippable-only": skippable,
        "valid-window": zstd_header(10),
        "valid-many": zstd_frame(bytes(300000)),
        "valid-empty": b"",
        "refused-window": zstd_header(31),
        "refused-cut": good[:-3],
        "refused-skippable-cut": skippable[:-1],
        "refused-checksum": good[:-1] + bytes([good[-1] ^ 1]),
        "refused-garbage": good + b"garbage",
        "refused-dictionary": b"\x28\xb5\x2f\xfd\x01\x00\x07\x01\0\0",
        "refused-plain": TEXT,
    }


def parquet_seeds():
    """What tests/io/data/make_parquet.py wrote."""
    read = {name: (PARQUET / f"{name}.parquet").read_bytes() for name in
            ("plain", "snappy-dictionary", "large-string-zstd", "arrow-dictionary-gzip", "delta-v2-pages", "binary", "nulls",
             "not-strings", "no-rows")}
    good = read["plain"]
    seeds = {("refused-" if name in ("nulls", "not-strings", "no-rows") else "valid-") + name: content
             for name, content in read.items()}
    return {**seeds, "refused-empty": b"", "refused-cut": good[:-20], "refused-footer": good[:-8] + b"\xff\xff\xff\x7fPAR1",
            "refused-encrypted": good[:-4] + b"PARE"}
