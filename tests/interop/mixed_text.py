"""Texts that tokenizers stumble over, made from the files of this machine and from a seed."""

import glob
import random

SOURCES = ("/usr/include/**/*.h", "/usr/lib/python3*/**/*.py", "/usr/share/doc/**/*", "/usr/share/perl*/**/*.p[lm]",
           "/usr/share/common-licenses/*", "/usr/share/i18n/locales/*", "/usr/share/zoneinfo/*.tab")
SCRIPTS = ((0x41, 0x5A), (0x61, 0x7A), (0xC0, 0x24F), (0x370, 0x3FF), (0x400, 0x4FF), (0x531, 0x586), (0x5D0, 0x5EA),
           (0x620, 0x64A), (0x904, 0x939), (0xE01, 0xE3A), (0x1100, 0x11FF), (0x3041, 0x30FF), (0x4E00, 0x9FFF),
           (0xAC00, 0xD7A3), (0x1F300, 0x1F6FF), (0x20000, 0x2A6DF))
STRESS = (list(" \t\n\r\f\v'\"sStTdDmMrReEvVlL0123456789.,;:!?-_/#<>|(){}[]") + ["  ", "\r\n", "\n\n", "\u00a0", "\u0085",
          "\u1680", "\u180e", "\u2003", "\u200b", "\u200d", "\u2028", "\u2029", "\u202f", "\u3000", "\ufeff", "\u017f",
          "\u2019", "\u00bd", "\u2167", "\u2460", "\u0663", "\u4e00", "\u2581", "\u0301", "\u0323", "\u00e9", "e\u0301",
          "A\u030a", "\u212b", "\u1100\u1161\u11a8", "\uac00", "\U0001f600", "\U0001f468\u200d\U0001f469", "\x00", "\x1c",
          "\x7f", "\ufffd", "\uffff", "\U0010ffff", "'s", "'S", "'\u017f", "'ll", "'LL", "'re", "don't", "WE'VE", "<0x41>"])


class Mixer:
    """An endless stream of documents of many kinds."""

    def __init__(self, seed, special=()):
        self.random = random.Random(seed)
        self.special = [*special, " ", "a", "\n", "word", "  ", "<", "|", "\u00e9", "_", "1"]
        self.files = sorted(path for pattern in SOURCES for path in glob.glob(pattern, recursive=True))

    def from_file(self):
        for _ in range(20):
            try:
                with open(self.random.choice(self.files), "rb") as file:
                    data = file.read(1 << 20)
            except OSError:
                continue
            if b"\0" not in data[:1000] and data:
                first = self.random.randrange(len(data))
                return data[first:first + self.random.choice((300, 3000, 30000))].decode("utf-8", "ignore")
        return "no file"

    def words(self):
        low, high = self.random.choice(SCRIPTS)
        def word():
            return "".join(chr(self.random.randint(low, high)) for _ in range(self.random.randint(1, 9)))
        return "".join(word() + self.random.choice((" ", " ", " ", ", ", ".\n", "\n\n", " 2024 ", "'s ", "-", ""))
                       for _ in range(self.random.randint(1, 400)))

    def any_unicode(self):
        top = self.random.choice((0x7F, 0x7FF, 0xFFFF, 0x1FFFF, 0x10FFFF))
        codes = (self.random.randint(0, top) for _ in range(self.random.randint(1, 1000)))
        return "".join(chr(code) for code in codes if not 0xD800 <= code < 0xE000)

    def stress(self):
        pieces = self.random.sample(STRESS, self.random.randint(2, 12)) if self.random.random() < 0.5 else STRESS
        return "".join(self.random.choices(pieces, k=self.random.randint(1, 1000)))

    def with_special(self):
        return "".join(self.random.choices(self.special, k=self.random.randint(1, 200)))

    def runs(self):
        pieces = ("a", " ", "\n", "ab", "\u4e00", "1", "=", "\u0301", "e\u0301", "\u2581", "\t ", "aA")
        return "".join(self.random.choice(pieces) * self.random.randint(1, 3000) for _ in range(self.random.randint(1, 4)))

    def documents(self, num_bytes):
        kinds = (self.from_file, self.from_file, self.words, self.any_unicode, self.stress, self.with_special)
        while num_bytes > 0:
            kind = self.runs if self.random.random() < 0.01 else self.random.choice(kinds)
            text = kind()
            num_bytes -= len(text.encode())
            yield text
