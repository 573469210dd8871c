"""What a shared library or program says about those it needs, read from its bytes (64 bit, little endian)."""

import dataclasses
import struct

PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_STRTAB, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 5, 14, 15, 29


@dataclasses.dataclass
class Dynamic:
    needed: list
    run_paths: list
    soname: str


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(5) == b"\x7fELF\x02"


def read_segments(data):
    offset, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    for i in range(count):
        kind, _, begin, address, _, length = struct.unpack_from("<IIQQQQ", data, offset + i * size)
        yield kind, begin, address, length


def text_at(data, begin):
    return data[begin:data.index(b"\0", begin)].decode()


def read_dynamic(path):
    data = memoryview(open(path, "rb").read()).tobytes()
    segments = list(read_segments(data))
    entries = []
    for kind, begin, _, length in segments:
        if kind == PT_DYNAMIC:
            entries = [struct.unpack_from("<QQ", data, at) for at in range(begin, begin + length, 16)]
    table = next((value for tag, value in entries if tag == DT_STRTAB), None)
    if table is None:
        return Dynamic([], [], "")
    strings = next(begin + table - address for kind, begin, address, length in segments
                   if kind == PT_LOAD and address <= table < address + length)
    texts = [(tag, text_at(data, strings + value)) for tag, value in entries
             if tag in (DT_NEEDED, DT_SONAME, DT_RPATH, DT_RUNPATH)]
    paths = [path for tag, text in texts if tag in (DT_RPATH, DT_RUNPATH) for path in text.split(":") if path]
    return Dynamic([text for tag, text in texts if tag == DT_NEEDED], paths,
                   next((text for tag, text in texts if tag == DT_SONAME), ""))
