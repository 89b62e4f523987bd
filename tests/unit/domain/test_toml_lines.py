from __future__ import annotations

import pytest

from servekit.domain.toml_lines import Path, line_of

TEXT = """\
schema = 1
# key_in_a_comment = 1, and three quotes: \"\"\"
[server]
port = 8080
"quoted key" = 1
a . b = 2

[[models]]
name = "a"
note = '''
[[models]]
name = "in a string"
'''
one_line = \"\"\"[server]\"\"\"
[models.image]
crop = 1

  [[ models ]]   # indented, with blanks
name = "b"
args = { width = 1, deep = { er = 2 } }
shape = [
  1,
  2,
]
last = 3
[ models . image ]
crop = 2
[runtime]
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ((), 1),
        (("schema",), 1),
        (("key_in_a_comment",), 1),
        (("server",), 3),
        (("server", "port"), 4),
        (("server", "quoted key"), 5),
        (("server", "a", "b"), 6),
        (("server", "nowhere"), 3),
        (("models",), 8),
        (("models", 0), 8),
        (("models", 0, "name"), 9),
        (("models", 0, "one_line"), 14),
        (("models", 0, "image"), 15),
        (("models", 0, "image", "crop"), 16),
        (("models", 1), 18),
        (("models", 1, "name"), 19),
        (("models", 1, "args", "deep", "er"), 20),
        (("models", 1, "shape", 0), 21),
        (("models", 1, "last"), 25),
        (("models", 1, "image", "crop"), 27),
        (("models", 2, "name"), 8),
        (("runtime", "gpus"), 28),
    ],
)
def test_where_a_key_stands(path: Path, line: int) -> None:
    assert line_of(TEXT, path) == line
    assert line_of(TEXT.replace("\n", "\r\n"), path) == line


def test_only_a_line_feed_ends_a_line() -> None:
    """str.splitlines also breaks at characters that TOML allows in a comment."""
    assert line_of("# a\u2028b\u0085c\nkey = 1\n", ("key",)) == 2
