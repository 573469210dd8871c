"""What disks and people do to files."""

import os
import shutil


def flip_bit(path, bit):
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ (1 << bit % 8)]))


def flip_a_bit(path, random):
    """Any one; returns which."""
    bit = random.randrange(8 * path.stat().st_size)
    flip_bit(path, bit)
    return bit


def truncate(path, size):
    os.truncate(path, size)


def lengthen(path):
    with open(path, "ab") as file:
        file.write(b"\0")


def swap(a, b):
    between = a.with_name(a.name + ".swapped")
    a.rename(between)
    b.rename(a)
    between.rename(b)


def copy_but_share(source, target, changed):
    """A copy of a folder whose files are links to those of `source`, but for the one named `changed`, which may then be
    written to."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name == changed:
            shutil.copyfile(path, target / path.name)
        else:
            os.link(path, target / path.name)
