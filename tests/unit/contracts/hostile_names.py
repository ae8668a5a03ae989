"""About a hundred names that have caused harm elsewhere, or could. None is a valid name of a sandbox or a task."""

from typing import Final

_SUBJECTS: Final = ["*", ">", "a.b", ".", "..", ".a", "a.", "a..b", "a.*", "a.>", "*a", "a*", "$SYS", "$JS.API",
    "$KV.x",
    "_INBOX", "_INBOX.x", "sandherd.v1.event.>", "{{name()}}", "{{tag(project)}}", "a>", ">a"]  # fmt: skip
_SPACES: Final = ["", " ", "  ", "a b", " a", "a ", "\t", "a\tb", "\n", "a\n", "\na", "a\nb", "\r", "a\r\n", "\v", "\f",
    "a\u00a0b", "\u2003", "\u3000", "\u1680", "\u180e"]  # fmt: skip
_CONTROLS: Final = ["\0", "a\0", "\0a", "\x01", "\x07", "\x08", "\x1b", "\x1b[2J", "\x1b]0;x\x07", "\x7f", "\x80",
    "\x9b",
    "a\x85b", "\u2028", "a\u2028b", "\u2029", "\ufeff", "\u200b", "a\u200bb", "\u200d", "\u00ad", "\ufffe", "\uffff",
    "\U000e0041", "\U0010ffff"]  # fmt: skip
_BIDIRECTIONAL: Final = ["\u202e", "a\u202eb", "\u202d", "\u2066a\u2069", "\u2067", "\u200e", "\u200f", "\u061c"]
_LETTERS: Final = ["A", "a" + "B", "Sbx-1", "SBX-1", "\u00e9", "e\u0301", "\u0430", "\uff41", "\u0131", "\u017f",
    "\u00df",
    "\u4e2d", "\u0661", "a\u0661", "\U0001d41a", "\U0001f600", "\u212a", "\u2160", "\u00b2"]  # fmt: skip
_PATHS: Final = ["/", "//", "/etc/passwd", "../x", "../../x", "a/b", "a/../b", "./a", "~", "~root", "\\", "a\\b",
    "C:\\x",
    "%2e%2e%2f", "a%00", "file:///x"]  # fmt: skip
_SHELLS: Final = ["-a", "--help", "-", "--", "-rf", "a;b", "a&b", "a|b", "`a`", "$(a)", "${A}", "a'b", 'a"b', "a<b",
    "!", "#a",
    "a=b", "@a", "a,b", "a:b", "a@b", "[a]", "(a)", "a+b", "^", "a?"]  # fmt: skip
_STATEMENTS: Final = ["' or 1=1 --", "'; drop table events; --", "<script>", "{", "[]", "_", "_a", "a_b", "__proto__"]
_LONG: Final = ["a" * 64, "a" * 65, "a" * 255, "a" * 256, "a" * 4096, "a" * 100_000, "-" * 63, "a." * 40]

HOSTILE_NAMES: Final = tuple(
    dict.fromkeys(
        [*_SUBJECTS, *_SPACES, *_CONTROLS, *_BIDIRECTIONAL, *_LETTERS, *_PATHS, *_SHELLS, *_STATEMENTS, *_LONG]
    )
)
