import pytest

from quantkit.eval.wikitext import detokenize, rolling_windows, words


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("a 12 @-@ year , well @,@ known", "a 12-year, well,known"),
        (" = Title = \n = = Part = = \n", " = Title =\n== Part ==\n"),
        ("the dogs 's ( big ) [ odd ] { x } tail", "the dogs's (big) [odd] {x} tail"),
        ('He said " no " ; then : yes !', 'He said "no"; then: yes !'),
        ("it 's 30 \N{DEGREE SIGN} N of here", "it's 30\N{DEGREE SIGN}N of here"),
        ("= = = = Deep = = = =", "==== Deep ===="),
        ("worth $ N million", "worth $ 1 million"),
    ],
)
def test_rules_of_the_harness(page: str, expected: str) -> None:
    assert detokenize(page) == expected


def test_words_are_counted_on_the_raw_page() -> None:
    assert words(" = A = \n b @-@ c") == 7  # the empty one before the first blank counts


def test_windows_as_the_harness_documents_them() -> None:
    """Of ten tokens and windows of four: its first, a full one, and one that reaches back."""
    assert list(rolling_windows(range(10), 99, 4)) == [
        ([99, 0, 1, 2, 3], 4),
        ([3, 4, 5, 6, 7], 4),
        ([5, 6, 7, 8, 9], 2),
    ]
    assert list(rolling_windows(range(3), 99, 4)) == [([99, 0, 1, 2], 3)]
    assert list(rolling_windows([], 99, 4)) == []
