#!/usr/bin/env python3
"""Writes text/unicode/unicode_ranges.cpp: the character classes as the `tokenizers` package sees them.

Asks the package itself about every code point, since it has three Unicode versions inside: that of its regex engine for
patterns, that of Rust for the pre-tokenizer Digits, and an old one for NFC. Needs the Python package `tokenizers`, and
Python 3.11 or older: what its Unicode 14, which pcre2 has too, does not know is written as new.
"""

import pathlib
import sys
import unicodedata

from tokenizers import Regex, normalizers, pre_tokenizers

TARGET = pathlib.Path(__file__).resolve().parents[2] / "text/unicode/unicode_ranges.cpp"
PROPERTIES = ("L", "Lu", "Ll", "Lm", "Lo", "M", "Mn", "Mc", "N", "Nd", "Nl", "No", "P", "Pd", "Po", "S", "Sm", "Sc", "Sk",
              "So", "Han", "Hiragana", "Katakana", "Latin", "Cyrillic", "Arabic")
SCALARS = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
CHUNK = 4096
WIDTH = 118


def chunks():
    return (SCALARS[i : i + CHUNK] for i in range(0, len(SCALARS), CHUNK))


def members(pattern):
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(c) for chunk in chunks() for piece, _ in split.pre_tokenize_str("".join(map(chr, chunk))) for c in piece}


def digits():
    """Digits isolates a digit; between letters it stands alone."""
    split = pre_tokenizers.Digits(individual_digits=True)
    text = ("".join("aa" + chr(code) for code in chunk) for chunk in chunks())
    return {ord(piece) for part in text for piece, _ in split.pre_tokenize_str(part) if len(piece) == 1}


def not_normalized(marks):
    """What newer versions of Unicode reorder or compose, and the NFC of the package leaves alone."""
    nfc = normalizers.NFC().normalize_str

    def is_reordered(c):
        return nfc("a\u0345" + c) != "a\u0345" + c or nfc("a" + c + "\u0334") != "a" + c + "\u0334"

    def may_be_mark(c):
        return unicodedata.combining(c) != 0 or (unicodedata.category(c) == "Cn" and ord(c) in marks)

    for code in SCALARS[0x300:]:
        parts = unicodedata.normalize("NFD", chr(code))
        if may_be_mark(chr(code)) and not is_reordered(chr(code)):
            yield code
        elif parts != chr(code) and nfc(parts) != unicodedata.normalize("NFC", parts):
            yield code


def ranges(codes):
    result = []
    for code in sorted(codes):
        if result and result[-1][1] == code - 1:
            result[-1][1] = code
        else:
            result.append([code, code])
    return result


def table(name, codes):
    lines = [f"constexpr CodePointRange {name}[] = {{"]
    line = "   "
    for first, last in ranges(codes):
        item = f" {{0x{first:X}, 0x{last:X}}},"
        if len(line) + len(item) > WIDTH:
            lines.append(line)
            line = "   "
        line += item
    return "\n".join(lines + [line, "};"])


def new_members():
    """Tables of what the pattern engine takes for a property and Unicode 14 does not know, and the table of these."""
    tables, rows = [], []
    for name in PROPERTIES:
        codes = {code for code in members(rf"\p{{{name}}}") if unicodedata.category(chr(code)) == "Cn"}
        if codes:
            tables.append(table(f"kNew{name}", codes))
            rows.append(f'    {{"{name}", kNew{name}}},')
    return [*tables, "constexpr NewMembers kNewMembers[] = {", *rows, "};"]


def main():
    if unicodedata.unidata_version > "14.0.0":
        sys.exit("unicode_ranges: got a Python of a later Unicode version, expected 14.0.0 or older")
    letters, numbers, marks = (members(rf"\p{{{name}}}") for name in "LNM")
    tables = [table("kLetters", letters), table("kNumbers", numbers), table("kMarks", marks),
              table("kSpaces", members(r"\s")), table("kDigits", digits()),
              table("kUnnormalized", not_normalized(marks))]
    names = ["letters", "numbers", "marks", "spaces", "digits", "unnormalized"]
    functions = [f"std::span<const CodePointRange> {name}() {{ return k{name.capitalize()}; }}" for name in names]
    TARGET.write_text("\n".join([
        "// Written by tests/interop/unicode_ranges.py.", '#include "text/unicode/unicode_ranges.h"', "",
        "namespace fsdp::tokenizer::unicode_ranges {", "namespace {", "", "// clang-format off", *tables, *new_members(), "// clang-format on",
        "", "}  // namespace", "", *functions, "", "std::span<const NewMembers> new_members() { return kNewMembers; }", "", "}  // namespace fsdp::tokenizer::unicode_ranges", ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
